// Activation recompute: run a function keeping its inputs only, and run it again in backward.
//
// The function's parameters are autograd leaves that it captures; their gradients are accumulated
// by the nested backward pass, and hooks on them fire then.
#pragma once

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <functional>

namespace nsa::model {

using Replayable = std::function<torch::autograd::variable_list(
    const torch::autograd::variable_list& inputs, bool replay)>;

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  struct Held : torch::CustomClassHolder {
    explicit Held(Replayable f) : function(std::move(f)) {}
    Replayable function;
  };

  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                at::TensorList inputs, const Replayable& function) {
    context->save_for_backward(inputs.vec());
    context->saved_data["function"] =
        c10::IValue::make_capsule(c10::make_intrusive<Held>(function));
    return function(inputs.vec(), false);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    torch::autograd::variable_list inputs;
    for (const at::Tensor& saved : context->get_saved_variables())
      inputs.push_back(saved.detach().requires_grad_());
    const auto held =
        c10::static_intrusive_pointer_cast<Held>(context->saved_data["function"].toCapsule());
    torch::autograd::variable_list outputs, result;
    {
      c10::AutoGradMode with_grad(true);
      outputs = held->function(inputs, true);
    }
    torch::autograd::backward(outputs, grads);
    for (const at::Tensor& input : inputs)
      result.push_back(input.grad());
    result.emplace_back(); // of the function
    return result;
  }
};

// `replay` is true in the second run of the same inputs.
inline torch::autograd::variable_list recompute(const Replayable& function,
                                                const torch::autograd::variable_list& inputs) {
  return RecomputeFunction::apply(at::TensorList(inputs), function);
}

} // namespace nsa::model
