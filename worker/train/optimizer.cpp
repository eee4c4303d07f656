#include "worker/train/optimizer.h"

#include "nsa_model/ops/update.h"
#include "worker/train/stochastic_rounding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

namespace nsa::train {

namespace {

// Elements that are widened or narrowed at once, unless one parameter has more.
constexpr size_t kPartElements = size_t(1) << 24;

} // namespace

Optimizer::Optimizer(FlatState& state, const spec::TrainSection& train, bool kernels)
    : state_(state), train_(train),
      in_one_(kernels && ops::has_update_kernels(state.masters.device())) {
  if (in_one_) {
    mark_decayed();
    return;
  }
  plan_parts();
  int64_t longest = 0;
  for (const Part& part : parts_)
    longest = std::max(longest, part.count);
  const auto scratch = [&](at::ScalarType type) {
    return at::empty({longest}, state.masters.options().dtype(type));
  };
  if (state.mode() == PrecisionMode::kStochasticRounding) widened_ = scratch(at::kFloat);
  if (state.mode() == PrecisionMode::kPure) narrowed_ = scratch(at::kBFloat16);
  for (Part& part : parts_) {
    part.decayed.weight_decay = train.weight_decay;
    for (size_t i = 0; i < state.parameter_count(); ++i)
      add_parameter(part, i);
  }
}

void Optimizer::mark_decayed() {
  const BucketPlan& plan = state_.plan();
  at::Tensor marks =
      at::zeros({static_cast<int64_t>(plan.parameter_elements / kSlotAlignment)}, at::kByte);
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const size_t end = plan.slots[i].offset + plan.slots[i].count + kSlotAlignment - 1;
    const auto first = static_cast<int64_t>(plan.slots[i].offset / kSlotAlignment);
    if (state_.weight_decay(i))
      marks.slice(0, first, static_cast<int64_t>(end / kSlotAlignment)).fill_(1);
  }
  decayed_ = marks.to(state_.masters.device());
}

at::Tensor Optimizer::step_in_one(double learning_rate, const at::Tensor& loss) {
  ops::AdamW update;
  update.values = state_.masters;
  update.first_moments = state_.first_moments;
  update.second_moments = state_.second_moments;
  update.weights = state_.rounded_weights();
  update.gradients =
      state_.gradients.narrow(0, 0, static_cast<int64_t>(state_.plan().parameter_elements));
  update.decayed = decayed_;
  update.updates = state_.updates;
  update.beta1 = train_.beta1;
  update.beta2 = train_.beta2;
  update.weight_decay = train_.weight_decay;
  update.epsilon = train_.epsilon;
  update.clip = train_.gradient_clip;
  update.seed = static_cast<uint64_t>(train_.seed);
  return ops::adamw_(update, loss, learning_rate);
}

// The flat buffers cut at parameters; with masters there is nothing to copy, and one part.
void Optimizer::plan_parts() {
  const BucketPlan& plan = state_.plan();
  for (size_t i = plan.slots.size(); i-- > 0;) { // in the order of the buffers
    const BucketPlan::Slot& slot = plan.slots[i];
    const size_t end = i == 0 ? plan.parameter_elements : plan.slots[i - 1].offset;
    const bool fits = !parts_.empty() && (state_.mode() == PrecisionMode::kMaster ||
                                          end - size_t(parts_.back().begin) <= kPartElements);
    if (!fits) parts_.push_back({.begin = static_cast<int64_t>(slot.offset)});
    parts_.back().count = static_cast<int64_t>(end) - parts_.back().begin;
  }
}

void Optimizer::add_parameter(Part& part, size_t i) {
  const BucketPlan::Slot& slot = state_.plan().slots[i];
  const auto offset = static_cast<int64_t>(slot.offset), count = static_cast<int64_t>(slot.count);
  if (offset < part.begin || offset >= part.begin + part.count) return;
  const auto copied = [&](const at::Tensor& copy) {
    return copy.narrow(0, offset - part.begin, count).view(state_.tensor(i).sizes());
  };
  Group& group = state_.weight_decay(i) ? part.decayed : part.plain;
  group.values.push_back(widened_.defined() ? copied(widened_) : state_.slice(state_.masters, i));
  group.gradients.push_back(narrowed_.defined() ? copied(narrowed_)
                                                : state_.slice(state_.gradients, i));
  group.first_moments.push_back(state_.slice(state_.first_moments, i));
  group.second_moments.push_back(state_.slice(state_.second_moments, i));
  group.updates.push_back(state_.updates); // one count for all; the kernel only reads it
}

void Optimizer::load(const Part& part) {
  const auto of_part = [&](const at::Tensor& flat) {
    return flat.narrow(0, part.begin, part.count);
  };
  if (widened_.defined()) widened_.narrow(0, 0, part.count).copy_(of_part(state_.masters));
  if (narrowed_.defined()) narrowed_.narrow(0, 0, part.count).copy_(of_part(state_.gradients));
}

void Optimizer::store(const Part& part) {
  if (!widened_.defined()) return;
  round_stochastically(widened_.narrow(0, 0, part.count),
                       state_.masters.narrow(0, part.begin, part.count),
                       static_cast<uint64_t>(train_.seed), state_.updates, part.begin);
}

at::Tensor Optimizer::step(double learning_rate, const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  if (in_one_) return step_in_one(learning_rate, loss);
  // Padding between parameters is zero and does not add to the norm.
  const at::Tensor norm = at::linalg_vector_norm(
      state_.gradients.narrow(0, 0, static_cast<int64_t>(state_.plan().parameter_elements)));
  const at::Tensor good = at::isfinite(norm).logical_and_(at::isfinite(loss)).to(at::kFloat);
  const at::Tensor found_inf = good.neg().add_(1.0);
  // The kernel divides gradients by grad_scale: 1 below the limit, norm / limit above it. The
  // epsilon is PyTorch's clip_grad_norm_, so that the same settings give the same updates.
  at::Tensor divide_by = at::ones_like(norm);
  if (train_.gradient_clip > 0)
    divide_by = norm.add(1e-6).div_(train_.gradient_clip).clamp_min_(1.0).nan_to_num_(1.0);
  state_.updates.add_(good);
  for (Part& part : parts_) {
    load(part);
    for (Group* group : {&part.decayed, &part.plain}) {
      if (group->values.empty()) continue;
      at::_fused_adamw_(group->values, group->gradients, group->first_moments,
                        group->second_moments, {}, group->updates, learning_rate, train_.beta1,
                        train_.beta2, group->weight_decay, train_.epsilon, /*amsgrad=*/false,
                        /*maximize=*/false, divide_by, found_inf);
    }
    store(part);
  }
  state_.publish_masters();
  return norm;
}

} // namespace nsa::train
