// Activation recompute: run a function keeping its input only, and run it again in backward.
//
// The function's parameters are autograd leaves that it captures; their gradients are accumulated
// by the nested backward pass, and hooks on them fire then.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <functional>

namespace nsa::model {

using Replayable = std::function<at::Tensor(const at::Tensor& x, bool replay)>;

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  struct Held : torch::CustomClassHolder {
    explicit Held(Replayable f) : function(std::move(f)) {}
    Replayable function;
  };

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const Replayable& function) {
    context->save_for_backward({x});
    context->saved_data["function"] =
        c10::IValue::make_capsule(c10::make_intrusive<Held>(function));
    return function(x, false);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto held =
        c10::static_intrusive_pointer_cast<Held>(context->saved_data["function"].toCapsule());
    at::Tensor out;
    {
      c10::AutoGradMode with_grad(true);
      out = held->function(x, true);
    }
    torch::autograd::backward({out}, {grads[0]});
    return {x.grad(), at::Tensor()};
  }
};

// `replay` is true in the second run of the same input.
inline at::Tensor recompute(const Replayable& function, const at::Tensor& x) {
  return RecomputeFunction::apply(x, function);
}

} // namespace nsa::model
