#include "worker/data/evaluation.h"

#include "worker/data/batch_builder.h"

#include <algorithm>

namespace nsa::data {

Result<EvaluationSet> EvaluationSet::open(std::shared_ptr<const dataset::Dataset> dataset,
                                          const BatchShape& shape, int64_t max_sequences) {
  NSA_TRY(check(shape));
  const int64_t tokens = dataset->tokens(dataset::Split::kHeldout).size();
  const int64_t samples = sample_count(tokens, shape.sequence_length);
  if (samples < 1)
    return fail(ErrorCode::kInvalidArgument,
                "the held-out split of " + dataset->folder().string() + " has " +
                    std::to_string(tokens) + " tokens, a sequence needs " +
                    std::to_string(shape.sequence_length + 1),
                "prepare the data with a larger held-out fraction, or switch evaluation off");
  if (max_sequences < 0)
    return fail(ErrorCode::kInvalidArgument, "the number of sequences to evaluate is negative");
  EvaluationSet set;
  set.dataset_ = std::move(dataset);
  set.shape_ = shape;
  set.samples_ = samples;
  set.sequences_ = max_sequences == 0 ? samples : std::min(max_sequences, samples);
  return set;
}

int64_t EvaluationSet::batches() const {
  const int64_t a_round = shape_.micro_batch * shape_.world;
  return (sequences_ + a_round - 1) / a_round;
}

Batch EvaluationSet::batch(int64_t number) const {
  Batch batch = make_batch(shape_.micro_batch, shape_.sequence_length, {});
  std::vector<SequenceAddress> addresses;
  for (int64_t row = 0; row < shape_.micro_batch; ++row) {
    const int64_t sequence = (number * shape_.world + shape_.rank) * shape_.micro_batch + row;
    if (sequence >= sequences_) break;
    const int64_t sample = sequence * samples_ / sequences_; // evenly spread
    addresses.push_back({sequence, 0, sample, sample * shape_.sequence_length});
  }
  fill_batch(dataset_->tokens(dataset::Split::kHeldout), addresses, batch);
  batch.step = number;
  return batch;
}

} // namespace nsa::data
