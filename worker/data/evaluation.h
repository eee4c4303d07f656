// The held-out split, cut into the same sequences at every evaluation and on any number of ranks:
// always the same samples, in text order. Assembles on the caller's thread; one caller.
//
//   EvaluationSet set = ...;
//   for (int64_t b = 0; b < set.batches(); ++b) { Batch batch = set.batch(b); ... }
//
// Of a mixture the sources come one after the other, each with its share of the sequences, and a
// batch has rows of one source only.
//
// Every rank has the same number of batches, so that collectives inside an evaluation pair up; at
// the end of a source a batch may have fewer rows than micro_batch, or none. Weight losses by rows.
#pragma once

#include "common/base/result.h"
#include "worker/data/batch.h"
#include "worker/data/source.h"

#include <vector>

namespace nsa::data {

class EvaluationSet {
public:
  // At most `max_sequences` sequences over all ranks and sources (but one of each source), evenly
  // spread over each split; 0 means all. kInvalidArgument when a data set has no held-out split, or
  // one shorter than a sequence. shape.accumulate is not used.
  static Result<EvaluationSet> open(std::vector<Source> sources, const BatchShape& shape,
                                    int64_t max_sequences);

  int64_t sequences() const; // over all ranks
  int64_t batches() const;   // a rank
  size_t sources() const { return sources_.size(); }
  size_t source_of(int64_t batch) const;
  Batch batch(int64_t number) const;
  // One sequence of the set, for a rank that has none in a round and must take part in its pass.
  Batch any_sequence() const;

  // Of the mean loss of each source: that of the mixture, in which they have their weights.
  double mixed(const std::vector<double>& losses) const;

private:
  struct Part {
    int64_t samples = 0;        // in the split
    int64_t sequences = 0;      // of them, evaluated
    int64_t first_sequence = 0; // of the set
    int64_t first_batch = 0;
  };
  int64_t batches_of(const Part& part) const;

  std::vector<Source> sources_;
  std::vector<Part> parts_; // of each source
  BatchShape shape_;
};

// Deals `count` out by weights, exactly: largest remainders first, earlier ones first of equals.
std::vector<int64_t> shares_of(int64_t count, const std::vector<int64_t>& weights);

} // namespace nsa::data
