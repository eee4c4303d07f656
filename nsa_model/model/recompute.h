// Activation recompute: runs a block and keeps almost nothing, then runs it again in the backward
// pass.
//
// The block captures its parameters, which are autograd leaves. The nested backward pass
// accumulates their gradients, and their hooks fire then.
#pragma once

#include "nsa_model/ops/attention.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/custom_class.h>

#include <functional>
#include <utility>

namespace nsa::model {

// Tensors that are kept from the first run of a block to the second.
struct KeptOfBlock {
  at::Tensor sum;               // sum of the block's inputs
  ops::KeptAttention attention; // empty if attention is computed again
};

// The two runs of a block. The first starts from the inputs, runs without gradients, and stores
// their sum in `kept`. The second starts from that sum, runs with gradients, and produces the same
// bits.
struct RecomputedBlock {
  std::function<torch::autograd::variable_list(const torch::autograd::variable_list& inputs,
                                               KeptOfBlock& kept)>
      first;
  std::function<torch::autograd::variable_list(const at::Tensor& sum, KeptOfBlock kept)> second;
};

struct RecomputeFunction : torch::autograd::Function<RecomputeFunction> {
  struct Held : torch::CustomClassHolder {
    explicit Held(RecomputedBlock b) : block(std::move(b)) {}
    RecomputedBlock block;
    KeptOfBlock kept;
    size_t inputs = 0;
  };

  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                at::TensorList inputs,
                                                const RecomputedBlock& block) {
    const auto held = c10::make_intrusive<Held>(block);
    held->inputs = inputs.size();
    context->saved_data["held"] = c10::IValue::make_capsule(held);
    return block.first(inputs.vec(), held->kept);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto held =
        c10::static_intrusive_pointer_cast<Held>(context->saved_data["held"].toCapsule());
    TORCH_CHECK(held->kept.sum.defined(), "recompute: a second backward pass of a graph that was "
                                          "not retained");
    // Without retain_graph the nested pass frees what it has used, block by block.
    KeptOfBlock kept = torch::autograd::get_current_graph_task_keep_graph()
                           ? held->kept
                           : std::exchange(held->kept, {});
    const at::Tensor sum = kept.sum.detach().requires_grad_();
    torch::autograd::variable_list outputs;
    {
      c10::AutoGradMode with_grad(true);
      outputs = held->block.second(sum, std::move(kept));
    }
    torch::autograd::backward(outputs, grads);
    // the gradient of a sum is that of each addend
    torch::autograd::variable_list result(held->inputs, sum.grad());
    result.emplace_back(); // no gradient for the block
    return result;
  }
};

inline torch::autograd::variable_list recompute(const RecomputedBlock& block,
                                                const torch::autograd::variable_list& inputs) {
  return RecomputeFunction::apply(at::TensorList(inputs), block);
}

} // namespace nsa::model
