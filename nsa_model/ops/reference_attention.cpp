#include "nsa_model/ops/reference_attention.h"

#include "nsa_model/reference/attention.h"

#include <torch/csrc/autograd/custom_function.h>

namespace nsa::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

reference::Array to_array(const Tensor& x) {
  const Tensor flat = x.to(at::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

Tensor like(const reference::Array& array, const Tensor& x) {
  return at::from_blob(const_cast<double*>(array.data()), x.sizes(), at::kDouble)
      .to(x.scalar_type(), false, true);
}

// The oracle's arguments in its order: q, gates, then k and v of each branch; absent ones are
// zeros.
struct Problem {
  reference::Shape shape;
  reference::Sizes sizes;
  reference::Inputs inputs;
};

Problem describe(const variable_list& x, const Settings& settings) {
  const Tensor &q = x[0], &gates = x[1];
  Problem p;
  p.sizes = settings.sizes;
  p.shape = {q.size(0), q.size(1), q.size(2), 0, q.size(3), settings.scale};
  for (int branch = 0; branch < 3; ++branch)
    if (x[2 + branch].defined()) p.shape.groups = x[2 + branch].size(2);
  p.inputs.q = to_array(q);
  p.inputs.gates = to_array(gates.repeat_interleave(q.size(2) / gates.size(2), 2));
  for (int branch = 0; branch < 3; ++branch) {
    const int64_t rows = branch == 0 ? reference::compressed_count(q.size(1), p.sizes) : q.size(1);
    const size_t room = q.size(0) * rows * p.shape.groups * q.size(3);
    p.inputs.k[branch] = x[2 + branch].defined() ? to_array(x[2 + branch]) : reference::Array(room);
    p.inputs.v[branch] = x[5 + branch].defined() ? to_array(x[5 + branch]) : reference::Array(room);
  }
  if (x[8].defined()) {
    const Tensor starts = x[8].contiguous();
    p.inputs.document_start.assign(starts.const_data_ptr<int64_t>(),
                                   starts.const_data_ptr<int64_t>() + starts.numel());
  }
  if (x[9].defined()) {
    const Tensor indices = x[9].contiguous();
    p.inputs.indices.assign(indices.const_data_ptr<int32_t>(),
                            indices.const_data_ptr<int32_t>() + indices.numel());
  }
  return p;
}

struct ReferenceFunction : torch::autograd::Function<ReferenceFunction> {
  static Tensor forward(AutogradContext* context, const Tensor& q, const Tensor& gates,
                        const OptionalTensor& k0, const OptionalTensor& k1,
                        const OptionalTensor& k2, const OptionalTensor& v0,
                        const OptionalTensor& v1, const OptionalTensor& v2,
                        const OptionalTensor& document_start, const OptionalTensor& given,
                        const Settings& settings) {
    at::AutoDispatchBelowADInplaceOrView guard;
    variable_list x{q, gates};
    for (const OptionalTensor& t : {k0, k1, k2, v0, v1, v2, document_start, given})
      x.push_back(t.value_or(Tensor()));
    const Problem p = describe(x, settings);
    const reference::Outputs out = reference::attend(p.shape, p.sizes, p.inputs);
    // The backward pass must use this selection, whether it was given or computed.
    x[9] = at::tensor(out.indices, at::kInt);
    context->save_for_backward(x);
    const Sizes& z = settings.sizes;
    context->saved_data["sizes"] = std::vector<int64_t>{
        z.compression_block, z.compression_stride, z.selection_block, z.selected_blocks, z.window};
    context->saved_data["scale"] = settings.scale;
    return like(out.o, q);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list x = context->get_saved_variables();
    const auto z = context->saved_data["sizes"].toIntVector();
    const Problem p =
        describe(x, {{z[0], z[1], z[2], z[3], z[4]}, context->saved_data["scale"].toDouble()});
    const reference::Outputs out = reference::attend(p.shape, p.sizes, p.inputs);
    const reference::Gradients grad =
        reference::attend_backward(p.shape, p.sizes, p.inputs, out, to_array(grads[0]));
    const Tensor &q = x[0], &gates = x[1];
    const Tensor by_head = at::from_blob(
        const_cast<double*>(grad.gates.data()),
        {q.size(0), q.size(1), gates.size(2), q.size(2) / gates.size(2), 3}, at::kDouble);
    variable_list result{like(grad.q, q), by_head.sum(3).to(gates.scalar_type())};
    for (int branch = 0; branch < 3; ++branch)
      result.push_back(x[2 + branch].defined() ? like(grad.k[branch], x[2 + branch]) : Tensor());
    for (int branch = 0; branch < 3; ++branch)
      result.push_back(x[5 + branch].defined() ? like(grad.v[branch], x[5 + branch]) : Tensor());
    result.resize(11);
    return result;
  }
};

} // namespace

Tensor reference_attention(const AttentionInputs& in, const Settings& settings) {
  return ReferenceFunction::apply(in.q, in.gates, in.k[0], in.k[1], in.k[2], in.v[0], in.v[1],
                                  in.v[2], in.document_start, in.indices, settings);
}

} // namespace nsa::ops
