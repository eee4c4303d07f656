#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/regrouped.h"
#include "nsa_model/ops/segments.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

namespace nsa::ops {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

double scale_of(const Settings& settings, const Tensor& q) {
  return settings.scale != 0 ? settings.scale : 1.0 / std::sqrt(double(q.size(3)));
}

// Returns the arguments of one segment.
BranchArguments part(const Segment& segment, Branch branch, const Tensor& q, const Tensor& k,
                     const Tensor& v, const OptionalTensor& indices, const Settings& settings) {
  const auto keys = [&](const Tensor& x) {
    if (!x.defined()) return Tensor();
    return branch == Branch::kCompressed ? segment.compressed(x, settings.sizes)
                                         : segment.tokens(x);
  };
  BranchArguments arguments{branch,         segment.tokens(q),    keys(k), keys(v), Tensor(),
                            settings.sizes, scale_of(settings, q)};
  if (branch == Branch::kSelected) {
    const bool given = indices && indices->defined();
    TORCH_CHECK(given || segment.document.length() <=
                             settings.sizes.selected_blocks * settings.sizes.selection_block,
                "nsa: selected attention over ", segment.document.length(),
                " tokens needs indices (nsa::select gives them)");
    if (given) arguments.indices = segment.tokens(*indices);
  }
  return arguments;
}

struct BranchFunction : torch::autograd::Function<BranchFunction> {
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, int64_t branch_number,
                               const OptionalTensor& indices, const Settings& settings,
                               const OptionalTensor& document_start, const BranchOptions& options) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const Branch branch = Branch(branch_number);
    const int64_t batch = q.size(0), length = q.size(1), groups = k.size(2);
    BranchOutputs out;
    out.o = at::empty(q.sizes(), q.options());
    if (options.want_lse)
      out.lse =
          at::empty({batch, length, q.size(2)}, q.options().dtype(compute_type(q.scalar_type())));
    if (options.select)
      out.indices = at::full({batch, length, groups, settings.sizes.selected_blocks}, -1,
                             q.options().dtype(at::kInt));
    variable_list saved{q, k, v, indices.value_or(Tensor()), document_start.value_or(Tensor())};
    // number of tensors that each segment keeps; 0 if it used the chunked pass
    std::vector<int64_t> kept;
    if (!q.is_meta())
      for (const Segment& s : segments(batch, length, settings.sizes, document_start)) {
        const BranchArguments arguments = part(s, branch, q, k, v, indices, settings);
        const bool regrouped =
            !options.want_lse && regrouped_serves(arguments, options.selected_here);
        count_kernel(choice::Part(branch_number),
                     regrouped ? choice::Backend::kFlash : choice::Backend::kAten);
        BranchOutputs outputs;
        if (out.lse.defined()) outputs.lse = s.tokens(out.lse);
        if (out.indices.defined()) outputs.indices = s.tokens(out.indices);
        if (!regrouped) outputs.o = s.tokens(out.o);
        if (!regrouped || options.select) branch_forward(arguments, outputs);
        kept.push_back(0);
        if (!regrouped) continue;
        const variable_list more = regrouped_forward(arguments, s.tokens(out.o));
        saved.insert(saved.end(), more.begin(), more.end());
        kept.back() = int64_t(more.size());
      }
    context->save_for_backward(saved);
    context->saved_data["kept"] = kept;
    context->saved_data["branch"] = branch_number;
    context->saved_data["scale"] = settings.scale;
    const Sizes& z = settings.sizes;
    context->saved_data["sizes"] = std::vector<int64_t>{
        z.compression_block, z.compression_stride, z.selection_block, z.selected_blocks, z.window};
    const auto nothing = [&](at::ScalarType type) {
      return at::empty({0}, q.options().dtype(type));
    };
    if (!out.lse.defined()) out.lse = nothing(compute_type(q.scalar_type()));
    if (!out.indices.defined()) out.indices = nothing(at::kInt);
    context->mark_non_differentiable({out.lse, out.indices});
    return {out.o, out.lse, out.indices};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2];
    const auto z = context->saved_data["sizes"].toIntVector();
    const Settings settings{{z[0], z[1], z[2], z[3], z[4]},
                            context->saved_data["scale"].toDouble()};
    const Branch branch = Branch(context->saved_data["branch"].toInt());
    const auto type = compute_type(q.scalar_type());
    const auto zeros = [&](const Tensor& x) {
      return at::zeros(x.sizes(), x.options().dtype(type));
    };
    const Tensor grad_q = zeros(q), grad_k = zeros(k), grad_v = zeros(v);
    const auto kept = context->saved_data["kept"].toIntVector();
    auto next = saved.begin() + 5;
    size_t segment = 0;
    if (!q.is_meta())
      for (const Segment& s : segments(q.size(0), q.size(1), settings.sizes, saved[4])) {
        const auto keys = [&](const Tensor& x) {
          return branch == Branch::kCompressed ? s.compressed(x, settings.sizes) : s.tokens(x);
        };
        const BranchArguments arguments = part(s, branch, q, k, v, saved[3], settings);
        const int64_t count = kept[segment++];
        if (count == 0) {
          branch_backward(arguments, s.tokens(grads[0]), s.tokens(grad_q), keys(grad_k),
                          keys(grad_v));
        } else {
          regrouped_backward(arguments, {next, next + count}, s.tokens(grads[0]), s.tokens(grad_q),
                             keys(grad_k), keys(grad_v));
        }
        next += count;
      }
    return {grad_q.to(q.scalar_type()),
            grad_k.to(k.scalar_type()),
            grad_v.to(v.scalar_type()),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor(),
            Tensor()};
  }
};

} // namespace

void check_branch(Branch branch, const Tensor& q, const Tensor& k, const Tensor& v,
                  const OptionalTensor& indices, const Settings& settings) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4, "nsa: q must be [B, S, H, D] and k [B, K, G, D], got ",
              q.sizes(), " and ", k.sizes());
  TORCH_CHECK(v.sizes() == k.sizes(), "nsa: k and v differ: ", k.sizes(), " and ", v.sizes());
  TORCH_CHECK(q.is_floating_point() && q.scalar_type() == k.scalar_type() &&
                  q.scalar_type() == v.scalar_type(),
              "nsa: q, k and v must share one floating dtype, got ", q.scalar_type(), ", ",
              k.scalar_type(), ", ", v.scalar_type());
  TORCH_CHECK(q.size(0) == k.size(0) && q.size(3) == k.size(3) && k.size(2) > 0 &&
                  q.size(2) % k.size(2) == 0,
              "nsa: heads must be a multiple of groups and batch and D equal: q ", q.sizes(),
              ", k ", k.sizes());
  const Sizes& sizes = settings.sizes;
  TORCH_CHECK(sizes.compression_stride >= 1 && sizes.selection_block >= 1 && sizes.window >= 1 &&
                  sizes.compression_block % sizes.compression_stride == 0 &&
                  sizes.selection_block % sizes.compression_stride == 0 &&
                  sizes.compression_block > 0 && sizes.selected_blocks >= 3,
              "nsa: compression_block and selection_block must be multiples of the stride, "
              "selected_blocks at least 3, window at least 1");
  const int64_t keys =
      branch == Branch::kCompressed ? reference::compressed_count(q.size(1), sizes) : q.size(1);
  TORCH_CHECK(k.size(1) == keys, "nsa: ", q.size(1), " queries need ", keys, " keys, got ",
              k.size(1));
  if (indices && indices->defined())
    TORCH_CHECK(indices->scalar_type() == at::kInt && indices->dim() == 4 &&
                    indices->size(0) == q.size(0) && indices->size(1) == q.size(1) &&
                    indices->size(2) == k.size(2),
                "nsa: indices must be int32 [B, S, G, n], got ", indices->scalar_type(), " ",
                indices->sizes());
}

BranchResult branch_attention(Branch branch, const Tensor& q, const Tensor& k, const Tensor& v,
                              const OptionalTensor& indices, const Settings& settings,
                              const OptionalTensor& document_start, const BranchOptions& options) {
  check_branch(branch, q, k, v, indices, settings);
  const variable_list out =
      BranchFunction::apply(q, k, v, int64_t(branch), indices, settings, document_start, options);
  return {out[0], out[1], out[2]};
}

std::tuple<Tensor, Tensor> select(const Tensor& q, const Tensor& k, const Settings& settings,
                                  const OptionalTensor& document_start) {
  c10::NoGradGuard no_grad;
  check_branch(Branch::kCompressed, q, k, k, std::nullopt, settings);
  const int64_t batch = q.size(0), length = q.size(1), groups = k.size(2);
  const Tensor scores =
      at::zeros({batch, length, groups, reference::block_count(length, settings.sizes)},
                q.options().dtype(at::kFloat));
  const Tensor indices = at::full({batch, length, groups, settings.sizes.selected_blocks}, -1,
                                  q.options().dtype(at::kInt));
  if (!q.is_meta())
    for (const Segment& s : segments(batch, length, settings.sizes, document_start))
      branch_forward(part(s, Branch::kCompressed, q, k, Tensor(), std::nullopt, settings),
                     {Tensor(), Tensor(), s.tokens(scores), s.tokens(indices)});
  return {scores, indices};
}

} // namespace nsa::ops
