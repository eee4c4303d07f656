#include "worker/optimizer/optimizer.h"

#include "nsa_model/ops/update.h"
#include "worker/optimizer/stochastic_rounding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

namespace nsa::train {

namespace {

// Elements that are converted at once, unless one parameter has more.
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
    longest = std::max(longest, static_cast<int64_t>(part.of.count()));
  const auto scratch = [&](at::ScalarType type) {
    return at::empty({longest}, state.masters.options().dtype(type));
  };
  if (state.mode() == PrecisionMode::kStochasticRounding) widened_ = scratch(at::kFloat);
  if (state.mode() == PrecisionMode::kPure) narrowed_ = scratch(at::kBFloat16);
  for (Part& part : parts_) {
    part.decayed.weight_decay = train.weight_decay;
    for (size_t i = 0; i < state.parameter_count(); ++i)
      add_slot(part, i);
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
  const ops::UpdateRule rule{learning_rate,       train_.beta1,   train_.beta2,
                             train_.weight_decay, train_.epsilon, train_.gradient_clip};
  const at::Tensor control = ops::update_control_(state_.square_sum(), loss, state_.updates, rule);
  for (const Range& own : state_.own()) {
    ops::AdamW update;
    update.values = state_.range(state_.masters, own);
    update.first_moments = state_.range(state_.first_moments, own);
    update.second_moments = state_.range(state_.second_moments, own);
    if (const auto weights = state_.rounded_weights()) update.weights = state_.range(*weights, own);
    if (state_.keeps_narrow_gradients())
      update.pieces = state_.narrow_gradients();
    else
      update.gradients = state_.range(state_.gradients, own);
    update.decayed = state_.range(decayed_, {own.begin / kSlotAlignment, own.end / kSlotAlignment});
    update.updates = state_.updates;
    update.control = control;
    update.seed = static_cast<uint64_t>(train_.seed);
    update.offset = static_cast<int64_t>(own.begin);
    ops::adamw_(update, rule);
  }
  return control[0];
}

// Splits this rank's ranges between slots into parts that are copied. With masters nothing is
// copied, so ranges stay whole.
void Optimizer::plan_parts() {
  const BucketPlan& plan = state_.plan();
  for (const Range& own : state_.own()) {
    parts_.push_back({{own.begin, own.begin}, {}, {}});
    for (size_t i = plan.slots.size(); i-- > 0;) { // in buffer order
      const size_t slot_end = i == 0 ? plan.parameter_elements : plan.slots[i - 1].offset;
      const Range slot{std::max(own.begin, plan.slots[i].offset), std::min(own.end, slot_end)};
      if (slot.begin >= slot.end) continue;
      const bool fits = state_.mode() == PrecisionMode::kMaster || parts_.back().of.count() == 0 ||
                        slot.end - parts_.back().of.begin <= kPartElements;
      if (!fits) parts_.push_back({{slot.begin, slot.begin}, {}, {}});
      parts_.back().of.end = slot.end;
    }
  }
}

// Adds the elements of parameter i that lie in the part.
void Optimizer::add_slot(Part& part, size_t i) {
  const BucketPlan::Slot& slot = state_.plan().slots[i];
  const Range of{std::max(part.of.begin, slot.offset),
                 std::min(part.of.end, slot.offset + slot.count)};
  if (of.begin >= of.end) return;
  const auto copied = [&](const at::Tensor& copy) {
    return state_.range(copy, {of.begin - part.of.begin, of.end - part.of.begin});
  };
  Group& group = state_.weight_decay(i) ? part.decayed : part.plain;
  group.values.push_back(widened_.defined() ? copied(widened_) : state_.range(state_.masters, of));
  group.gradients.push_back(narrowed_.defined() ? copied(narrowed_)
                                                : state_.range(state_.gradients, of));
  group.first_moments.push_back(state_.range(state_.first_moments, of));
  group.second_moments.push_back(state_.range(state_.second_moments, of));
  group.updates.push_back(state_.updates); // one count for all; the kernel only reads it
}

void Optimizer::load(const Part& part) {
  const Range copy{0, part.of.count()};
  if (widened_.defined()) state_.range(widened_, copy).copy_(state_.range(state_.masters, part.of));
  if (narrowed_.defined())
    state_.range(narrowed_, copy).copy_(state_.range(state_.gradients, part.of));
}

void Optimizer::store(const Part& part) {
  if (!widened_.defined()) return;
  round_stochastically(state_.range(widened_, {0, part.of.count()}),
                       state_.range(state_.masters, part.of), static_cast<uint64_t>(train_.seed),
                       state_.updates, static_cast<int64_t>(part.of.begin));
}

at::Tensor Optimizer::step(double learning_rate, const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
  if (in_one_) return step_in_one(learning_rate, loss);
  const at::Tensor norm = state_.square_sum().sqrt();
  const at::Tensor good = at::isfinite(norm).logical_and_(at::isfinite(loss)).to(at::kFloat);
  const at::Tensor found_inf = good.neg().add_(1.0);
  // The kernel divides gradients by grad_scale: 1 below the limit, norm / limit above it. The
  // epsilon is that of PyTorch's clip_grad_norm_, so that the same settings give the same updates.
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
  state_.publish_own_masters();
  return norm;
}

} // namespace nsa::train
