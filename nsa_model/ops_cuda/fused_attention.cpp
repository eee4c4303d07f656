// nsa::fused_attention for CUDA with its autograd, and nsa::fused_kernels. libnsa_ops.so declares
// the schemas.
#include "nsa_model/ops_cuda/fused_call.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

namespace nsa::ops {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor or_undefined(const OptionalTensor& tensor) {
  return tensor.value_or(Tensor());
}
OptionalTensor if_defined(const Tensor& tensor) {
  return tensor.defined() ? OptionalTensor(tensor) : std::nullopt;
}

// Key in a node's saved_data: the outputs of the branches.
constexpr const char* kBranchOut = "branch_out";

// Order of the tensors that a node saves.
enum Saved : std::size_t {
  kQuery,
  kGates,
  kKeys,
  kValues = kKeys + 3,
  kLse = kValues + 3,
  kIndices = kLse + 3,
  kLists,
  kPooledKeys,
  kPooledValues,
  kDocuments,
  kSavedCount
};

class FusedAttention : public torch::autograd::Function<FusedAttention> {
public:
  // Absent branches are empty optionals, because a node cannot take an undefined tensor as an
  // argument.
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& gates,
                        const OptionalTensor& k0, const OptionalTensor& k1,
                        const OptionalTensor& k2, const OptionalTensor& v0,
                        const OptionalTensor& v1, const OptionalTensor& v2,
                        const AttentionInputs& inputs, const Settings& settings,
                        const FusedForward* first) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const FusedForward result = first != nullptr ? *first : fused_forward(inputs, settings);
    variable_list saved(kSavedCount);
    saved[kQuery] = q;
    saved[kGates] = gates;
    const OptionalTensor keys[3] = {k0, k1, k2};
    const OptionalTensor values[3] = {v0, v1, v2};
    for (std::size_t branch = 0; branch < 3; ++branch) {
      saved[kLse + branch] = result.branch_lse[branch];
      if (branch == 0 && result.pooled_k.defined()) continue; // the backward reads the pooled ones
      saved[kKeys + branch] = or_undefined(keys[branch]);
      saved[kValues + branch] = or_undefined(values[branch]);
    }
    context->saved_data["groups"] = k0.has_value() ? k0->size(2) : 0;
    saved[kIndices] = result.indices;
    saved[kLists] = result.lists;
    saved[kPooledKeys] = result.pooled_k;
    saved[kPooledValues] = result.pooled_v;
    saved[kDocuments] = or_undefined(inputs.document_start);
    context->save_for_backward(saved);
    // Stored separately, because the backward frees it before it allocates most of its scratch
    // memory.
    context->saved_data[kBranchOut] =
        c10::List<Tensor>({result.branch_out[0], result.branch_out[1], result.branch_out[2]});
    context->saved_data["indices_given"] = inputs.indices.has_value();
    context->saved_data["scale"] = settings.scale;
    return first != nullptr ? result.out.detach() : result.out; // this node is its history
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    AttentionInputs inputs;
    inputs.q = saved[kQuery];
    inputs.gates = saved[kGates];
    FusedForward forward;
    const c10::List<Tensor> branch_out = context->saved_data[kBranchOut].toTensorList();
    for (std::size_t branch = 0; branch < 3; ++branch) {
      inputs.k[branch] = if_defined(saved[kKeys + branch]);
      inputs.v[branch] = if_defined(saved[kValues + branch]);
      forward.branch_out[branch] = branch_out.get(branch);
      forward.branch_lse[branch] = saved[kLse + branch];
    }
    inputs.document_start = if_defined(saved[kDocuments]);
    forward.indices = saved[kIndices];
    forward.lists = saved[kLists];
    forward.pooled_k = saved[kPooledKeys];
    forward.pooled_v = saved[kPooledValues];
    if (forward.pooled_k.defined()) { // only their sizes are used
      std::vector<int64_t> sizes = inputs.q.sizes().vec();
      sizes[2] = context->saved_data["groups"].toInt();
      inputs.k[0] = at::empty(sizes, inputs.q.options());
      inputs.v[0] = inputs.k[0];
    }
    if (context->saved_data["indices_given"].toBool()) inputs.indices = saved[kIndices];
    // The forward has checked the sizes, and only the default ones are supported.
    Settings settings;
    settings.scale = context->saved_data["scale"].toDouble();
    if (!torch::autograd::get_current_graph_task_keep_graph()) {
      branch_out.clear();
      context->saved_data.erase(kBranchOut);
    }
    const FusedBackward result =
        fused_backward(inputs, settings, std::move(forward), grads[0].contiguous());
    return {result.q,    result.gates, result.k[0], result.k[1], result.k[2], result.v[0],
            result.v[1], result.v[2],  Tensor(),    Tensor(),    Tensor()};
  }
};

AttentionInputs inputs_of(const Tensor& q, const OptionalTensor& k_compressed,
                          const OptionalTensor& v_compressed, const OptionalTensor& k_selected,
                          const OptionalTensor& v_selected, const OptionalTensor& k_sliding,
                          const OptionalTensor& v_sliding, const Tensor& gates,
                          const OptionalTensor& document_start, const OptionalTensor& indices) {
  AttentionInputs in{q.contiguous(),
                     {k_compressed, k_selected, k_sliding},
                     {v_compressed, v_selected, v_sliding},
                     gates,
                     document_start,
                     indices};
  for (std::size_t branch = 0; branch < 3; ++branch) {
    TORCH_CHECK(in.k[branch].has_value() == in.v[branch].has_value(),
                "a branch has keys or values, but not both");
    if (!in.k[branch].has_value()) continue;
    in.k[branch] = in.k[branch]->contiguous();
    in.v[branch] = in.v[branch]->contiguous();
  }
  if (in.indices.has_value()) in.indices = in.indices->contiguous();
  // The kernels read one gate for each head, so a gate of a group is repeated.
  const int64_t heads = q.size(2);
  if (in.gates.size(2) != heads) {
    TORCH_CHECK(heads % in.gates.size(2) == 0, "gates are ", in.gates.sizes(), " for ", heads,
                " heads");
    in.gates = in.gates.repeat_interleave(heads / in.gates.size(2), 2);
  }
  in.gates = in.gates.contiguous();
  return in;
}

Settings settings_of(int64_t block, int64_t stride, int64_t selection_block, int64_t selected,
                     int64_t window, double scale) {
  return {{block, stride, selection_block, selected, window}, scale};
}

Tensor with_gradients(const Tensor& q, const OptionalTensor& k_compressed,
                      const OptionalTensor& v_compressed, const OptionalTensor& k_selected,
                      const OptionalTensor& v_selected, const OptionalTensor& k_sliding,
                      const OptionalTensor& v_sliding, const Tensor& gates,
                      int64_t compression_block, int64_t compression_stride,
                      int64_t selection_block, int64_t selected_blocks, int64_t window,
                      double scale, const OptionalTensor& document_start,
                      const OptionalTensor& indices) {
  const AttentionInputs in = inputs_of(q, k_compressed, v_compressed, k_selected, v_selected,
                                       k_sliding, v_sliding, gates, document_start, indices);
  return FusedAttention::apply(in.q, in.gates, in.k[0], in.k[1], in.k[2], in.v[0], in.v[1], in.v[2],
                               in,
                               settings_of(compression_block, compression_stride, selection_block,
                                           selected_blocks, window, scale),
                               static_cast<const FusedForward*>(nullptr));
}

// All results of a forward pass as a list. An undefined tensor is stored as an empty one.
enum First : std::size_t {
  kOut,
  kFirstBranchOut,
  kFirstLse = kFirstBranchOut + 3,
  kFirstIndices = kFirstLse + 3,
  kFirstLists,
  kFirstPooledKeys,
  kFirstPooledValues,
  kFirstCount
};
std::vector<Tensor> to_list(const FusedForward& forward) {
  std::vector<Tensor> list(kFirstCount);
  list[kOut] = forward.out;
  for (std::size_t branch = 0; branch < 3; ++branch) {
    list[kFirstBranchOut + branch] = forward.branch_out[branch];
    list[kFirstLse + branch] = forward.branch_lse[branch];
  }
  list[kFirstIndices] = forward.indices;
  list[kFirstLists] = forward.lists;
  list[kFirstPooledKeys] = forward.pooled_k;
  list[kFirstPooledValues] = forward.pooled_v;
  for (Tensor& tensor : list)
    if (!tensor.defined()) tensor = at::empty({0}, forward.out.options());
  return list;
}
FusedForward of_list(at::TensorList list) {
  TORCH_CHECK(list.size() == kFirstCount, "fused attention: a first run leaves ",
              static_cast<std::size_t>(kFirstCount), " tensors, not ", list.size());
  const auto at = [&](std::size_t i) { return list[i].numel() > 0 ? list[i] : Tensor(); };
  FusedForward forward;
  forward.out = list[kOut];
  for (std::size_t branch = 0; branch < 3; ++branch) {
    forward.branch_out[branch] = at(kFirstBranchOut + branch);
    forward.branch_lse[branch] = at(kFirstLse + branch);
  }
  forward.indices = at(kFirstIndices);
  forward.lists = at(kFirstLists);
  forward.pooled_k = at(kFirstPooledKeys);
  forward.pooled_v = at(kFirstPooledValues);
  return forward;
}

std::vector<Tensor> first_run(const Tensor& q, const OptionalTensor& k_compressed,
                              const OptionalTensor& v_compressed, const OptionalTensor& k_selected,
                              const OptionalTensor& v_selected, const OptionalTensor& k_sliding,
                              const OptionalTensor& v_sliding, const Tensor& gates,
                              int64_t compression_block, int64_t compression_stride,
                              int64_t selection_block, int64_t selected_blocks, int64_t window,
                              double scale, const OptionalTensor& document_start,
                              const OptionalTensor& indices) {
  return to_list(fused_forward(inputs_of(q, k_compressed, v_compressed, k_selected, v_selected,
                                         k_sliding, v_sliding, gates, document_start, indices),
                               settings_of(compression_block, compression_stride, selection_block,
                                           selected_blocks, window, scale)));
}

Tensor second_run(const Tensor& q, const OptionalTensor& k_compressed,
                  const OptionalTensor& v_compressed, const OptionalTensor& k_selected,
                  const OptionalTensor& v_selected, const OptionalTensor& k_sliding,
                  const OptionalTensor& v_sliding, const Tensor& gates, int64_t compression_block,
                  int64_t compression_stride, int64_t selection_block, int64_t selected_blocks,
                  int64_t window, double scale, const OptionalTensor& document_start,
                  const OptionalTensor& indices, at::TensorList first) {
  const AttentionInputs in = inputs_of(q, k_compressed, v_compressed, k_selected, v_selected,
                                       k_sliding, v_sliding, gates, document_start, indices);
  const FusedForward forward = of_list(first);
  TORCH_CHECK(forward.out.sizes() == q.sizes(), "fused attention: the first run's output is ",
              forward.out.sizes(), ", q is ", q.sizes());
  return FusedAttention::apply(in.q, in.gates, in.k[0], in.k[1], in.k[2], in.v[0], in.v[1], in.v[2],
                               in,
                               settings_of(compression_block, compression_stride, selection_block,
                                           selected_blocks, window, scale),
                               &forward);
}

Tensor without_gradients(const Tensor& q, const OptionalTensor& k_compressed,
                         const OptionalTensor& v_compressed, const OptionalTensor& k_selected,
                         const OptionalTensor& v_selected, const OptionalTensor& k_sliding,
                         const OptionalTensor& v_sliding, const Tensor& gates,
                         int64_t compression_block, int64_t compression_stride,
                         int64_t selection_block, int64_t selected_blocks, int64_t window,
                         double scale, const OptionalTensor& document_start,
                         const OptionalTensor& indices) {
  return fused_forward(inputs_of(q, k_compressed, v_compressed, k_selected, v_selected, k_sliding,
                                 v_sliding, gates, document_start, indices),
                       settings_of(compression_block, compression_stride, selection_block,
                                   selected_blocks, window, scale))
      .out;
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, AutogradCUDA, library) {
  library.impl("fused_attention", &with_gradients);
  library.impl("fused_attention_second", &second_run);
}
TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("fused_attention", &without_gradients);
  library.impl("fused_attention_first", &first_run);
  library.impl("fused_kernels", &serving_kernels);
  library.impl("why_not_fused", &why_not_served);
  library.impl("compute_capability", &compute_capability_of);
}

} // namespace nsa::ops
