#include "nsa_model/model/cross_entropy.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/ops/fused_support.h"
#include "nsa_model/ops/layer.h"
#include "nsa_model/ops/product.h"
#include "nsa_model/ops/scale_gradient.h"
#include "nsa_model/ops/vocabulary_product.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

namespace nsa::model {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t tokens_a_chunk(const Tensor& hidden, const Tensor& weight, bool fused) {
  const bool gpu = !hidden.is_cpu();
  return serves::loss_chunk(gpu, fused && hidden.is_cuda() && hidden.scalar_type() == at::kBFloat16,
                            weight.size(0));
}

at::ScalarType loss_type(const Tensor& hidden) {
  return hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void check_arguments(const Tensor& hidden, const Tensor& weight, const Tensor& targets) {
  TORCH_CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1) &&
                  hidden.scalar_type() == weight.scalar_type(),
              "linear_cross_entropy: hidden ", hidden.sizes(), " ", hidden.scalar_type(),
              " does not fit weight ", weight.sizes(), " ", weight.scalar_type());
  TORCH_CHECK(targets.dim() == 1 && targets.size(0) == hidden.size(0) &&
                  targets.scalar_type() == at::kLong,
              "linear_cross_entropy: targets must be int64 [", hidden.size(0), "]");
}

// Whether exponentials take the place of logits. A CPU computes the same in ATen operations.
bool takes_exponentials(const Tensor& hidden, const Tensor& weight) {
  return hidden.is_cpu() || (hidden.scalar_type() == at::kBFloat16 &&
                             serves::exponentials(ops::compute_capability(hidden.device()) / 10,
                                                  hidden.size(0), weight.size(0), weight.size(1)));
}

// The rows and weights of a micro-batch, and where the gradients go.
struct Batch {
  const Tensor &hidden, &weight, &labels, &in_mean; // in_mean: weight of each token
  Tensor grad_hidden, grad_weight;                  // undefined without gradient
};

// Writes the gradients, except for the part of the weight's that `label_factor` [N] describes
// (ops::MissingRows). Returns the loss.
Tensor loss_of_exponentials(const Batch& batch, const Tensor& label_factor) {
  const Tensor losses = at::empty_like(batch.in_mean);
  const int64_t tokens = batch.hidden.size(0);
  const int64_t step = tokens_a_chunk(batch.hidden, batch.weight, /*fused=*/true);
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const auto chunk = [&, count = std::min(step, tokens - begin)](const Tensor& x) {
      return x.narrow(0, begin, count);
    };
    const Tensor h = chunk(batch.hidden), labels = chunk(batch.labels);
    const auto e = ops::vocabulary_product(h, batch.weight, labels, chunk(batch.in_mean),
                                           chunk(losses), chunk(label_factor));
    const Tensor product = at::empty(h.sizes(), losses.options());
    ops::product_(product, e.values, batch.weight, {}, /*add=*/false);
    ops::hidden_gradient_(chunk(batch.grad_hidden), product, e.factor, chunk(label_factor), labels,
                          batch.weight);
    ops::product_(batch.grad_weight, e.values, e.scaled, {.a = true}, /*add=*/begin > 0);
  }
  return losses.sum();
}

// The same from logits. Without gradients to write it computes only the loss.
Tensor loss_of_logits(const Batch& batch, bool fused) {
  Tensor loss = at::zeros({}, batch.in_mean.options());
  const int64_t tokens = batch.hidden.size(0);
  const int64_t step = tokens_a_chunk(batch.hidden, batch.weight, fused);
  const bool with_gradient = batch.grad_hidden.defined();
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const auto chunk = [&, count = std::min(step, tokens - begin)](const Tensor& x) {
      return x.narrow(0, begin, count);
    };
    const Tensor h = chunk(batch.hidden);
    const Tensor logits = ops::linear(h, batch.weight, fused);
    loss.add_(
        ops::cross_entropy_(logits, chunk(batch.labels), chunk(batch.in_mean), with_gradient, fused)
            .sum());
    if (!with_gradient) continue;
    const Tensor& grad = logits; // cross_entropy_ has overwritten the logits with their gradient
    Tensor target = chunk(batch.grad_hidden), sum = batch.grad_weight;
    if (fused) {
      ops::product_(target, grad, batch.weight, {}, /*add=*/false);
      ops::product_(sum, grad, h, {.a = true}, /*add=*/begin > 0);
      continue;
    }
    at::mm_out(target, grad, batch.weight);
    if (sum.scalar_type() == batch.weight.scalar_type())
      sum.addmm_(grad.t(), h);
    else
      sum.add_(at::mm(grad.t(), h));
  }
  return loss;
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(AutogradContext* context, const Tensor& hidden, const Tensor& weight,
                        const Tensor& targets, bool with_gradient, bool fused,
                        const c10::intrusive_ptr<ops::TiedGradient>& tied) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto type = loss_type(hidden);
    const int64_t tokens = hidden.size(0);
    const Tensor counted = targets.ge(0).to(type);
    const Tensor in_mean = counted / counted.sum().clamp_min(1); // weight of each token
    const Tensor labels = targets.clamp_min(0);
    Tensor grad_hidden, grad_weight, label_factor;
    if (with_gradient) {
      grad_hidden = at::empty_like(hidden);
      grad_weight = at::empty(weight.sizes(), weight.options().dtype(type));
      if (!fused || tokens == 0) grad_weight.zero_(); // otherwise the first product writes it
    }
    const Batch batch{hidden, weight, labels, in_mean, grad_hidden, grad_weight};
    const bool exponentials = with_gradient && fused && tied && takes_exponentials(hidden, weight);
    if (exponentials) label_factor = at::empty_like(in_mean);
    const Tensor loss =
        exponentials ? loss_of_exponentials(batch, label_factor) : loss_of_logits(batch, fused);
    if (exponentials)
      context->save_for_backward({grad_hidden, grad_weight, hidden, targets, label_factor});
    else if (with_gradient)
      context->save_for_backward(
          {grad_hidden, tied ? grad_weight : grad_weight.to(weight.scalar_type())});
    if (tied) context->saved_data["tied"] = c10::IValue::make_capsule(tied);
    return loss;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    TORCH_CHECK(saved.size() >= 2, "linear_cross_entropy: gradients were not computed");
    // Only a retained graph needs the gradient again.
    const bool retained = torch::autograd::get_current_graph_task_keep_graph();
    const Tensor for_hidden = retained ? saved[0].clone() : saved[0];
    ops::scale_gradient_(for_hidden, grads[0]);
    Tensor for_weight;
    if (const auto tied = context->saved_data.find("tied"); tied != context->saved_data.end()) {
      const auto to =
          c10::static_intrusive_pointer_cast<ops::TiedGradient>(tied->second.toCapsule());
      to->gradient = saved[1];
      to->scale = grads[0];
      // Detached, because the graph that computed the rows holds `to`. A negative target adds none.
      if (saved.size() > 2) to->missing = {saved[2].detach(), saved[3], saved[4]};
    } else {
      for_weight = saved[1] * grads[0].to(saved[1].scalar_type());
    }
    return {for_hidden, for_weight, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

} // namespace

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                            bool fused, const c10::intrusive_ptr<ops::TiedGradient>& tied) {
  check_arguments(hidden, weight, targets);
  const bool with_gradient =
      c10::GradMode::is_enabled() && (hidden.requires_grad() || weight.requires_grad());
  return LinearCrossEntropy::apply(hidden, weight, targets, with_gradient, fused, tied);
}

Tensor linear_token_losses(const Tensor& hidden, const Tensor& weight, const Tensor& targets,
                           bool fused) {
  check_arguments(hidden, weight, targets);
  const c10::NoGradGuard no_grad;
  const Tensor counted = targets.ge(0).to(loss_type(hidden));
  const Tensor labels = targets.clamp_min(0);
  Tensor losses = at::empty_like(counted);
  const int64_t step = tokens_a_chunk(hidden, weight, fused);
  for (int64_t begin = 0; begin < hidden.size(0); begin += step) {
    const auto chunk = [&, count = std::min(step, hidden.size(0) - begin)](const Tensor& x) {
      return x.narrow(0, begin, count);
    };
    chunk(losses).copy_(ops::cross_entropy_(ops::linear(chunk(hidden), weight, fused),
                                            chunk(labels), chunk(counted), /*gradient=*/false,
                                            fused));
  }
  return losses;
}

} // namespace nsa::model
