#include "worker/optimizer/flat_state.h"

#include "nsa_model/ops/update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <stdexcept>

namespace nsa::train {

FlatState::FlatState(std::vector<Parameter> parameters, size_t bucket_bytes, size_t sync_count,
                     PrecisionMode mode, Shard shard)
    : parameters_(std::move(parameters)), mode_(mode), shard_(shard) {
  const at::NoGradGuard no_grad;
  std::vector<size_t> counts;
  for (const Parameter& p : parameters_)
    counts.push_back(static_cast<size_t>(p.tensor.numel()));
  plan_ = plan_buckets(counts, bucket_bytes, sync_count + 1, shard.of);
  if (shard.of == 1)
    own_ = {{0, plan_.parameter_elements}};
  else
    for (size_t b = 0; b < plan_.buckets.size(); ++b)
      own_.push_back(shard_of(plan_, b, shard));

  const at::TensorOptions fp32 =
      parameters_.at(0).tensor.options().dtype(at::kFloat).requires_grad(std::nullopt);
  const auto elements = static_cast<int64_t>(plan_.parameter_elements);
  const at::ScalarType computed_in = parameters_[0].tensor.scalar_type();
  const bool masters_apart = mode == PrecisionMode::kMaster && computed_in != at::kFloat;
  if (mode != PrecisionMode::kMaster && computed_in != at::kBFloat16)
    throw std::invalid_argument("a precision mode without masters keeps BF16 weights, not " +
                                std::string(c10::toString(computed_in)));
  const at::TensorOptions bf16 = fp32.dtype(at::kBFloat16);
  masters = at::zeros({elements}, mode == PrecisionMode::kMaster ? fp32 : bf16);
  first_moments = at::zeros({elements}, mode == PrecisionMode::kPure ? bf16 : fp32);
  second_moments = at::zeros_like(first_moments);
  gradients = at::zeros({static_cast<int64_t>(plan_.gradient_elements)}, fp32);
  updates = at::zeros({}, fp32);
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].initial.defined()) slice(masters, i).copy_(parameters_[i].initial);

  weights_ = masters_apart ? at::zeros({elements}, fp32.dtype(computed_in)) : masters;
  publish_masters();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].initial.reset();
    parameters_[i].tensor.set_data(slice(weights_, i));
  }
}

at::Tensor FlatState::slice(const at::Tensor& flat, size_t i) const {
  const BucketPlan::Slot& slot = plan_.slots[i];
  return flat.narrow(0, static_cast<int64_t>(slot.offset), static_cast<int64_t>(slot.count))
      .view(parameters_[i].tensor.sizes());
}

at::Tensor FlatState::range(const at::Tensor& flat, Range of) const {
  return flat.narrow(0, static_cast<int64_t>(of.begin), static_cast<int64_t>(of.count()));
}

at::Tensor FlatState::sync_scalars() const {
  return range(gradients, {plan_.sync_begin, plan_.sync_begin + plan_.sync_count - 1});
}

at::Tensor FlatState::square_sum() const {
  return gradients[static_cast<int64_t>(plan_.sync_begin + plan_.sync_count - 1)];
}

at::Tensor FlatState::sync_scalars_and_square_sum() const {
  return range(gradients, {plan_.sync_begin, plan_.sync_begin + plan_.sync_count});
}

void FlatState::sum_squares() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (const Range& own : own_)
    parts.push_back(range(gradients, own));
  ops::square_sum_(square_sum(), parts);
}

std::optional<at::Tensor> FlatState::rounded_weights() const {
  if (weights_.is_same(masters)) return std::nullopt;
  return weights_;
}

void FlatState::publish_masters() {
  const at::NoGradGuard no_grad;
  if (!weights_.is_same(masters)) weights_.copy_(masters);
}

void FlatState::publish_own_masters() {
  const at::NoGradGuard no_grad;
  if (weights_.is_same(masters)) return;
  for (const Range& own : own_)
    range(weights_, own).copy_(range(masters, own));
}

} // namespace nsa::train
