#include "worker/train/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>

namespace nsa::train {

Optimizer::Optimizer(FlatState& state, const spec::TrainSection& train)
    : state_(state), train_(train) {
  decayed_.weight_decay = train.weight_decay;
  for (size_t i = 0; i < state.parameter_count(); ++i) {
    Group& group = state.weight_decay(i) ? decayed_ : plain_;
    group.masters.push_back(state.slice(state.masters, i));
    group.gradients.push_back(state.slice(state.gradients, i));
    group.first_moments.push_back(state.slice(state.first_moments, i));
    group.second_moments.push_back(state.slice(state.second_moments, i));
    group.updates.push_back(state.updates); // one count for all; the kernel only reads it
  }
}

at::Tensor Optimizer::step(double learning_rate, const at::Tensor& loss) {
  const at::NoGradGuard no_grad;
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
  for (Group* group : {&decayed_, &plain_}) {
    if (group->masters.empty()) continue;
    at::_fused_adamw_(group->masters, group->gradients, group->first_moments, group->second_moments,
                      {}, group->updates, learning_rate, train_.beta1, train_.beta2,
                      group->weight_decay, train_.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false, divide_by, found_inf);
  }
  state_.publish_masters();
  return norm;
}

} // namespace nsa::train
