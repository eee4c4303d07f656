#include "nsa_model/ops/decode.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <cmath>

namespace nsa::ops {

namespace {

using at::Tensor;

constexpr std::array kBranches{Branch::kCompressed, Branch::kSelected, Branch::kSliding};

bool is_on(const DecodeInputs& in, Branch branch) {
  return in.k[int(branch)] && in.k[int(branch)]->defined();
}

void check(const DecodeInputs& in) {
  const Tensor& q = in.q;
  TORCH_CHECK(q.dim() == 4 && q.size(1) == 1, "decode_attention: q is ", q.sizes(),
              ", expected [B, 1, H, D]");
  const int64_t batch = q.size(0);
  for (const Branch branch : kBranches) {
    const OptionalTensor &k = in.k[int(branch)], &v = in.v[int(branch)];
    TORCH_CHECK(is_on(in, branch) == (v && v->defined()),
                "decode_attention: k and v of a branch are given together or left out together");
    if (!is_on(in, branch)) continue;
    TORCH_CHECK(k->dim() == 4 && k->size(0) == batch && k->size(3) == q.size(3) && k->size(1) > 0 &&
                    q.size(2) % k->size(1) == 0 && v->sizes() == k->sizes(),
                "decode_attention: caches of keys ", k->sizes(), " and values ", v->sizes(),
                " do not fit q ", q.sizes(), ": expected [B, G, rows, D]");
    for (const Tensor* x : {&*k, &*v})
      TORCH_CHECK(x->scalar_type() == q.scalar_type() && x->device() == q.device(),
                  "decode_attention: a cache is ", x->scalar_type(), " on ", x->device(), ", q is ",
                  q.scalar_type(), " on ", q.device());
  }
  check_gates(in.gates, q);
  TORCH_CHECK(in.lengths.dim() == 1 && in.lengths.size(0) == batch &&
                  in.lengths.scalar_type() == at::kInt,
              "decode_attention: lengths must be int32 [", batch, "], got ",
              in.lengths.scalar_type(), " ", in.lengths.sizes());
}

// The keys of a branch in token order, as [B, K, G, D], and the position of the first.
struct Ordered {
  Tensor keys;
  int64_t first = 0;
};
Ordered in_order(const Tensor& cache, Branch branch, int64_t length, const Sizes& sizes) {
  const int64_t rows = cache.size(2);
  const auto part = [&](int64_t begin, int64_t count) { return cache.narrow(2, begin, count); };
  const auto need = [&](int64_t count) {
    TORCH_CHECK(count <= rows, "decode_attention: a cache of ", rows, " rows for a sequence of ",
                length, " tokens");
    return count;
  };
  if (branch == Branch::kCompressed)
    return {part(0, need(reference::compressed_count(length, sizes))).transpose(1, 2)};
  if (branch == Branch::kSelected || length <= rows) return {part(0, need(length)).transpose(1, 2)};
  need(std::min(length, sizes.window));
  const int64_t oldest = length % rows;
  return {at::cat({part(oldest, rows - oldest), part(0, oldest)}, 2).transpose(1, 2),
          length - rows};
}

// Computes sequences that all have the same length.
void attend_rows(const DecodeInputs& in, const Settings& settings, int64_t length,
                 const Tensor& out) {
  if (length <= 0) {
    out.zero_();
    return;
  }
  const Sizes& sizes = settings.sizes;
  const double scale = settings.scale != 0 ? settings.scale : 1.0 / std::sqrt(double(in.q.size(3)));
  const bool choose =
      is_on(in, Branch::kSelected) && length > sizes.selected_blocks * sizes.selection_block;
  TORCH_CHECK(!choose || is_on(in, Branch::kCompressed),
              "decode_attention: the selected branch needs compressed keys");
  Tensor indices;
  if (choose)
    indices = at::full({in.q.size(0), 1, in.k[1]->size(1), sizes.selected_blocks}, -1,
                       in.q.options().dtype(at::kInt));
  std::array<OptionalTensor, 3> branch_o;
  for (const Branch branch : kBranches) {
    if (!is_on(in, branch)) continue;
    const Ordered k = in_order(*in.k[int(branch)], branch, length, sizes),
                  v = in_order(*in.v[int(branch)], branch, length, sizes);
    const Tensor o = at::empty(in.q.sizes(), in.q.options());
    branch_forward({branch,
                    in.q,
                    k.keys,
                    v.keys,
                    branch == Branch::kSelected ? indices : Tensor(),
                    sizes,
                    scale,
                    {length - 1, k.first}},
                   {o, Tensor(), Tensor(), branch == Branch::kCompressed ? indices : Tensor()});
    branch_o[int(branch)] = o;
  }
  out.copy_(combine(in.gates, branch_o));
}

Tensor aten_decode(const DecodeInputs& in, const Settings& settings) {
  const Tensor out = at::empty(in.q.sizes(), in.q.options());
  const Tensor host = in.lengths.to(at::kCPU).contiguous();
  const int32_t* const lengths = host.const_data_ptr<int32_t>();
  for (int64_t begin = 0; begin < in.q.size(0);) {
    int64_t end = begin + 1;
    while (end < in.q.size(0) && lengths[end] == lengths[begin])
      ++end;
    const auto rows = [&](const Tensor& x) { return x.narrow(0, begin, end - begin); };
    DecodeInputs part{rows(in.q), {}, {}, rows(in.gates), in.lengths};
    for (const Branch branch : kBranches)
      if (is_on(in, branch)) {
        part.k[int(branch)] = rows(*in.k[int(branch)]);
        part.v[int(branch)] = rows(*in.v[int(branch)]);
      }
    attend_rows(part, settings, lengths[begin], rows(out));
    begin = end;
  }
  return out;
}

bool same_sizes(const Sizes& a, const Sizes& b) {
  return a.compression_block == b.compression_block &&
         a.compression_stride == b.compression_stride && a.selection_block == b.selection_block &&
         a.selected_blocks == b.selected_blocks && a.window == b.window;
}

Tensor decode_op(const Tensor& q, const OptionalTensor& k_compressed,
                 const OptionalTensor& v_compressed, const OptionalTensor& k_selected,
                 const OptionalTensor& v_selected, const OptionalTensor& k_sliding,
                 const OptionalTensor& v_sliding, const Tensor& gates, const Tensor& lengths,
                 int64_t compression_block, int64_t compression_stride, int64_t selection_block,
                 int64_t selected_blocks, int64_t window, double scale,
                 const std::string& kernels) {
  return decode_attention(
      {q,
       {k_compressed, k_selected, k_sliding},
       {v_compressed, v_selected, v_sliding},
       gates,
       lengths},
      {{compression_block, compression_stride, selection_block, selected_blocks, window}, scale},
      parse_kernels("decode_attention", kernels, {Kernels::kAten, Kernels::kFused}));
}

} // namespace

Tensor decode_attention(const DecodeInputs& in, const Settings& settings, Kernels kernels) {
  TORCH_CHECK(kernels != Kernels::kReference,
              "decode_attention: the oracle decodes nothing: use aten or fused");
  require_kernels(kernels, in.q.device());
  check(in);
  const c10::NoGradGuard no_grad;
  if (in.q.is_meta()) return at::empty_like(in.q);
  if (kernels == Kernels::kAten) return aten_decode(in, settings);
  TORCH_CHECK(same_sizes(settings.sizes, Sizes{}),
              "decode_attention: kernels \"fused\" serve l = 32, d = 16, block 64, 16 selected "
              "blocks and a window of 512; for other sizes write aten");
  return std::get<0>(fused_decode(in, settings.scale));
}

std::tuple<Tensor, Tensor> fused_decode(const DecodeInputs& in, double scale) {
  using Signature = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                               const Tensor&, const Tensor&, const Tensor&,
                                               const Tensor&, const Tensor&, const Tensor&, double);
  for (const Branch branch : kBranches)
    TORCH_CHECK(is_on(in, branch), "decode_attention: kernels \"fused\" serve all three branches "
                                   "together; for fewer write aten");
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("nsa::fused_decode", "").typed<Signature>();
  return op.call(in.q, *in.k[0], *in.v[0], *in.k[1], *in.v[1], *in.k[2], *in.v[2], in.gates,
                 in.lengths, scale);
}

TORCH_LIBRARY_FRAGMENT(nsa, library) {
  library.def(
      "decode_attention(Tensor q, Tensor? k_compressed, Tensor? v_compressed, Tensor? k_selected, "
      "Tensor? v_selected, Tensor? k_sliding, Tensor? v_sliding, Tensor gates, Tensor lengths, *, "
      "int compression_block=32, int compression_stride=16, int selection_block=64, "
      "int selected_blocks=16, int window=512, float scale=0., str kernels=\"aten\") "
      "-> Tensor",
      &decode_op);
  // libnsa_ops_cuda.so implements it for CUDA; scale 0 means 1 / sqrt(D).
  library.def("fused_decode(Tensor q, Tensor k_compressed, Tensor v_compressed, Tensor k_selected, "
              "Tensor v_selected, Tensor k_sliding, Tensor v_sliding, Tensor gates, "
              "Tensor lengths, float scale) -> (Tensor o, Tensor indices)");
}

} // namespace nsa::ops
