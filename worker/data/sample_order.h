// Gives the text position of the n-th sequence of training, and the rank that reads it. It uses no
// files and no threads; callable from any thread.
//
// A sample is sequence_length + 1 tokens at stride sequence_length. Neighbours share one token: the
// last target of the first is the first input of the second. T tokens have N = (T - 1) /
// sequence_length samples; the remainder at the end is not trained on.
//
// Training is one endless list of sequences, counted by g = 0, 1, ...: sequence g is sample
// permutation(epoch = g / N)(g mod N). A step takes the next global_batch sequences, also across
// the end of an epoch. Within a step, place j = (micro_step * world + rank) * micro_batch + row. So
// the set of a step's sequences is the same for every number of ranks and every split of the global
// batch into micro-batches. Their order by (micro step, rank, row) is the same, too.
#pragma once

#include "common/base/result.h"
#include "common/dataset/mixture.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nsa::data {

// The complete state of a run's data, as checkpoints store it. It contains nothing of a rank, so it
// is valid for any number of ranks.
struct DataState {
  uint64_t seed = 0;
  int64_t epoch = 0; // number of full passes; 0 for a mixture
  int64_t index = 0; // sequences consumed in this pass, in [0, samples); for a mixture in total
  int64_t sequence_length = 0;
  std::string dataset_digest;                     // one digest of all sources
  std::vector<dataset::MixedSource> sources = {}; // empty if the data set is not a mixture
  // With data.follow: the number of generations that were read, and the digest of their shards.
  int64_t generations = 0;
  std::string generations_digest = {};

  bool operator==(const DataState&) const = default;
};

// Returns the number of samples in `tokens` tokens; may be 0.
int64_t sample_count(int64_t tokens, int64_t sequence_length);

struct BatchShape {
  int64_t sequence_length = 0;
  int64_t micro_batch = 0; // rows of one forward pass of a rank
  int64_t accumulate = 1;  // micro-steps a step
  int64_t rank = 0;
  int64_t world = 1;

  int64_t global_batch() const { return micro_batch * accumulate * world; } // sequences
};

// Error: kInvalidArgument names the field that is out of range.
Status check(const BatchShape& shape);

// Returns the place of a row within its step, in [0, global_batch).
int64_t place_in_step(const BatchShape& shape, int64_t micro_step, int64_t row);

struct SequenceAddress {
  int64_t sequence = 0; // g
  int64_t epoch = 0;
  int64_t sample = 0;   // number in [0, N), in text order
  int64_t position = 0; // position of its first token in the split: sample * sequence_length
  int64_t source = 0;   // number of the data set in a mixture
};

class SampleOrder {
public:
  // samples >= 1.
  SampleOrder(int64_t samples, int64_t sequence_length, uint64_t seed)
      : samples_(samples), sequence_length_(sequence_length), seed_(seed) {}

  SequenceAddress at(int64_t sequence) const;
  int64_t samples() const { return samples_; }

private:
  int64_t samples_;
  int64_t sequence_length_;
  uint64_t seed_;
};

} // namespace nsa::data
