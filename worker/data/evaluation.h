// The held-out split, cut into sequences. Every evaluation reads the same sequences in text order,
// on any number of ranks. It assembles batches on the caller's thread and serves one caller.
//
//   EvaluationSet set = ...;
//   for (int64_t b = 0; b < set.batches(); ++b) { Batch batch = set.batch(b); ... }
//
// In a mixture the sources come one after the other, each with its part of the sequences. A batch
// has rows of one source only.
//
// Every rank has the same number of batches, so that collectives inside an evaluation match. At the
// end of a source a batch may have fewer rows than micro_batch, or none, so weight losses by rows.
#pragma once

#include "common/base/result.h"
#include "worker/data/batch.h"
#include "worker/data/source.h"

#include <vector>

namespace nsa::data {

class EvaluationSet {
public:
  // Takes at most `max_sequences` sequences over all ranks and sources, but at least one of each
  // source, evenly spread over each split. 0 means all. Error: kInvalidArgument if a data set has
  // no held-out split, or one shorter than a sequence. It ignores shape.accumulate.
  static Result<EvaluationSet> open(std::vector<Source> sources, const BatchShape& shape,
                                    int64_t max_sequences);

  int64_t sequences() const; // sequences of all ranks together
  int64_t batches() const;   // batches of each rank
  size_t sources() const { return sources_.size(); }
  size_t source_of(int64_t batch) const;
  Batch batch(int64_t number) const;
  // Returns one sequence of the set, for a rank that has none in a round and must still take part
  // in the pass.
  Batch any_sequence() const;

  // Returns the mixture's loss: the mean of the sources' losses, by weight.
  double mixed(const std::vector<double>& losses) const;

private:
  struct Part {
    int64_t samples = 0;        // samples in the split
    int64_t sequences = 0;      // evaluated sequences
    int64_t first_sequence = 0; // number in the set
    int64_t first_batch = 0;
  };
  int64_t batches_of(const Part& part) const;

  std::vector<Source> sources_;
  std::vector<Part> parts_; // indexed by source
  BatchShape shape_;
};

// Distributes `count` by weight, exactly. The largest remainders get the rest; the earlier of two
// equal ones comes first.
std::vector<int64_t> shares_of(int64_t count, const std::vector<int64_t>& weights);

} // namespace nsa::data
