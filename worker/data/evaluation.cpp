#include "worker/data/evaluation.h"

#include "worker/data/batch_builder.h"

#include <algorithm>
#include <numeric>

namespace nsa::data {

// Both a run and `nsactl evaluate` print it.
constexpr const char* kNoHeldOut =
    "prepare the data with a larger held-out fraction, or name another data set";

std::vector<int64_t> shares_of(int64_t count, const std::vector<int64_t>& weights) {
  const auto whole =
      static_cast<__int128>(std::accumulate(weights.begin(), weights.end(), int64_t{0}));
  std::vector<int64_t> shares;
  std::vector<std::pair<int64_t, size_t>> missing; // negative remainder, source
  int64_t left = count;
  for (size_t k = 0; k < weights.size(); ++k) {
    const __int128 product = static_cast<__int128>(count) * weights[k];
    shares.push_back(static_cast<int64_t>(product / whole));
    missing.emplace_back(-static_cast<int64_t>(product % whole), k);
    left -= shares.back();
  }
  std::sort(missing.begin(), missing.end());
  for (int64_t i = 0; i < left; ++i)
    ++shares[missing[static_cast<size_t>(i)].second];
  return shares;
}

Result<EvaluationSet> EvaluationSet::open(std::vector<Source> sources, const BatchShape& shape,
                                          int64_t max_sequences) {
  NSA_TRY(check(shape));
  if (max_sequences < 0)
    return fail(ErrorCode::kInvalidArgument, "the number of sequences to evaluate is negative");
  EvaluationSet set;
  set.shape_ = shape;
  std::vector<int64_t> weights;
  for (const Source& source : sources)
    weights.push_back(source.weight);
  const std::vector<int64_t> shares = shares_of(max_sequences, weights);
  int64_t sequences = 0, batches = 0;
  for (size_t k = 0; k < sources.size(); ++k) {
    const int64_t tokens = sources[k].dataset->tokens(dataset::Split::kHeldout).size();
    const int64_t samples = sample_count(tokens, shape.sequence_length);
    if (samples < 1)
      return fail(ErrorCode::kInvalidArgument,
                  "the held-out split of " + sources[k].dataset->folder().string() + " has " +
                      std::to_string(tokens) + " tokens, a sequence needs " +
                      std::to_string(shape.sequence_length + 1),
                  kNoHeldOut);
    Part part;
    part.samples = samples;
    part.sequences = max_sequences == 0 ? samples : std::clamp<int64_t>(shares[k], 1, samples);
    part.first_sequence = sequences;
    part.first_batch = batches;
    sequences += part.sequences;
    batches += set.batches_of(part);
    set.parts_.push_back(part);
  }
  set.sources_ = std::move(sources);
  return set;
}

int64_t EvaluationSet::batches_of(const Part& part) const {
  const int64_t a_round = shape_.micro_batch * shape_.world;
  return (part.sequences + a_round - 1) / a_round;
}

int64_t EvaluationSet::sequences() const {
  return parts_.back().first_sequence + parts_.back().sequences;
}

int64_t EvaluationSet::batches() const {
  return parts_.back().first_batch + batches_of(parts_.back());
}

size_t EvaluationSet::source_of(int64_t batch) const {
  size_t source = 0;
  while (source + 1 < parts_.size() && parts_[source + 1].first_batch <= batch)
    ++source;
  return source;
}

Batch EvaluationSet::batch(int64_t number) const {
  Batch batch = make_batch(shape_.micro_batch, shape_.sequence_length, {});
  const size_t source = source_of(number);
  const Part& part = parts_[source];
  std::vector<SequenceAddress> addresses;
  for (int64_t row = 0; row < shape_.micro_batch; ++row) {
    const int64_t sequence =
        ((number - part.first_batch) * shape_.world + shape_.rank) * shape_.micro_batch + row;
    if (sequence >= part.sequences) break;
    const int64_t sample = sequence * part.samples / part.sequences; // evenly spread
    addresses.push_back({part.first_sequence + sequence, 0, sample, sample * shape_.sequence_length,
                         static_cast<int64_t>(source)});
  }
  fill_batch(sources_, dataset::Split::kHeldout, addresses, batch);
  batch.step = number;
  return batch;
}

Batch EvaluationSet::any_sequence() const {
  Batch batch = make_batch(1, shape_.sequence_length, {});
  fill_batch(sources_, dataset::Split::kHeldout, std::vector<SequenceAddress>(1), batch);
  return batch;
}

double EvaluationSet::mixed(const std::vector<double>& losses) const {
  if (losses.size() == 1) return losses[0];
  double sum = 0, weights = 0;
  for (size_t k = 0; k < losses.size(); ++k) {
    sum += losses[k] * static_cast<double>(sources_[k].weight);
    weights += static_cast<double>(sources_[k].weight);
  }
  return sum / weights;
}

} // namespace nsa::data
