// The held-out split, cut into the same sequences at every evaluation and on any number of ranks:
// always the same samples, in text order. Assembles on the caller's thread; one caller.
//
//   EvaluationSet set = ...;
//   for (int64_t b = 0; b < set.batches(); ++b) { Batch batch = set.batch(b); ... }
//
// Every rank has the same number of batches, so that collectives inside an evaluation pair up; at
// the end a batch may have fewer rows than micro_batch, or none. Weight losses by rows.
#pragma once

#include "common/base/result.h"
#include "common/dataset/dataset.h"
#include "worker/data/batch.h"

#include <memory>

namespace nsa::data {

class EvaluationSet {
public:
  // At most `max_sequences` sequences over all ranks, evenly spread over the split; 0 means all.
  // kInvalidArgument when the data set has no held-out split, or one shorter than a sequence.
  // shape.accumulate is not used.
  static Result<EvaluationSet> open(std::shared_ptr<const dataset::Dataset> dataset,
                                    const BatchShape& shape, int64_t max_sequences);

  int64_t sequences() const { return sequences_; } // over all ranks
  int64_t batches() const;                         // a rank
  Batch batch(int64_t number) const;

private:
  std::shared_ptr<const dataset::Dataset> dataset_;
  BatchShape shape_;
  int64_t samples_ = 0; // in the split
  int64_t sequences_ = 0;
};

} // namespace nsa::data
