#include "worker/optimizer/flat_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <stdexcept>

namespace nsa::train {

namespace {
int64_t rounded_up(size_t count) {
  return static_cast<int64_t>((count + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment);
}
} // namespace

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
  plan_groups();

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
  gradients =
      at::zeros({static_cast<int64_t>(plan_.gradient_elements) + rounded_up(groups_.size())}, fp32);
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

// The padding after each slot is zero, so every range consists of whole slots.
void FlatState::plan_groups() {
  for (size_t i = parameters_.size(); i-- > 0;) { // in buffer order
    if (parameters_[i].group.empty()) continue;
    auto group = std::find(groups_.begin(), groups_.end(), parameters_[i].group);
    if (group == groups_.end()) {
      group = groups_.insert(groups_.end(), parameters_[i].group);
      own_of_group_.emplace_back();
    }
    std::vector<Range>& ranges = own_of_group_[static_cast<size_t>(group - groups_.begin())];
    const BucketPlan::Slot& slot = plan_.slots[i];
    const size_t end = slot.offset + static_cast<size_t>(rounded_up(slot.count));
    for (const Range& own : own_) {
      const Range part{std::max(own.begin, slot.offset), std::min(own.end, end)};
      if (part.begin >= part.end) continue;
      if (!ranges.empty() && ranges.back().end == part.begin)
        ranges.back().end = part.end;
      else
        ranges.push_back(part);
    }
  }
  std::reverse(groups_.begin(), groups_.end());
  std::reverse(own_of_group_.begin(), own_of_group_.end());
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

at::Tensor FlatState::group_square_sums() const {
  return range(gradients, {plan_.gradient_elements, plan_.gradient_elements + groups_.size()});
}

at::Tensor FlatState::agreed_words() const {
  return range(gradients,
               {plan_.sync_begin, groups_.empty() ? plan_.sync_begin + plan_.sync_count
                                                  : plan_.gradient_elements + groups_.size()});
}

void FlatState::sum_squares(bool by_group) {
  const at::NoGradGuard no_grad;
  const auto sum_into = [this](const at::Tensor& sum, const std::vector<Range>& ranges) {
    if (keeps_narrow_gradients()) {
      std::vector<int64_t> bounds;
      for (const Range& of : ranges)
        bounds.insert(bounds.end(), {static_cast<int64_t>(of.begin), static_cast<int64_t>(of.end)});
      ops::piece_square_sum_(sum, pieces_, bounds);
      return;
    }
    std::vector<at::Tensor> parts;
    for (const Range& of : ranges)
      parts.push_back(range(gradients, of));
    ops::square_sum_(sum, parts);
  };
  sum_into(square_sum(), own_);
  if (!by_group) return;
  const at::Tensor sums = group_square_sums();
  for (size_t group = 0; group < groups_.size(); ++group)
    sum_into(sums[static_cast<int64_t>(group)], own_of_group_[group]);
}

void FlatState::keep_narrow_gradients(bool narrow) {
  if (narrow == keeps_narrow_gradients()) return;
  const at::NoGradGuard no_grad;
  gradients.zero_(); // nothing else writes the padding between parameters
  narrow_.reset();
  if (narrow) narrow_ = range(gradients.view(at::kBFloat16), {0, plan_.parameter_elements});
  pieces_ = {};
}

at::Tensor FlatState::readable_gradient(size_t i, const at::Tensor& gradient) const {
  if (ops::is_piece(gradient)) return gradient;
  slice(narrow_, i).copy_(gradient);
  const BucketPlan::Slot& slot = plan_.slots[i];
  return narrow_.narrow(0, static_cast<int64_t>(slot.offset), rounded_up(slot.count));
}

void FlatState::set_narrow_gradients(const std::vector<at::Tensor>& gradients_now) {
  pieces_ = {};
  for (size_t i = gradients_now.size(); i-- > 0;) { // in buffer order
    if (!gradients_now[i].defined()) continue;
    pieces_.gradients.push_back(gradients_now[i]);
    pieces_.offsets.push_back(static_cast<int64_t>(plan_.slots[i].offset));
  }
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
