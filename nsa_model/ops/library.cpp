// torch.ops.nsa.*: the schemas and their implementations (docs/operators.md describes each). All
// are composed of differentiable functions, which also support the meta device.
#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/fused.h"
#include "nsa_model/ops/fused_support.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace nsa::ops {

namespace {

using at::Tensor;

Settings settings_of(int64_t block, int64_t stride, int64_t selection_block, int64_t selected,
                     int64_t window, double scale) {
  return {{block, stride, selection_block, selected, window}, scale};
}

Tensor attention_op(const Tensor& q, const OptionalTensor& k_compressed,
                    const OptionalTensor& v_compressed, const OptionalTensor& k_selected,
                    const OptionalTensor& v_selected, const OptionalTensor& k_sliding,
                    const OptionalTensor& v_sliding, const Tensor& gates, int64_t compression_block,
                    int64_t compression_stride, int64_t selection_block, int64_t selected_blocks,
                    int64_t window, double scale, const OptionalTensor& document_start,
                    const OptionalTensor& indices, const std::string& kernels) {
  AttentionInputs in{q,
                     {k_compressed, k_selected, k_sliding},
                     {v_compressed, v_selected, v_sliding},
                     gates,
                     document_start,
                     indices};
  return attention(
      in,
      settings_of(compression_block, compression_stride, selection_block, selected_blocks, window,
                  scale),
      parse_kernels("attention", kernels, {Kernels::kAten, Kernels::kReference, Kernels::kFused}));
}

std::tuple<Tensor, Tensor> compressed_attention_op(const Tensor& q, const Tensor& k,
                                                   const Tensor& v, int64_t compression_block,
                                                   int64_t compression_stride, double scale,
                                                   const OptionalTensor& document_start) {
  Settings settings;
  settings.sizes.compression_block = compression_block;
  settings.sizes.compression_stride = compression_stride;
  settings.sizes.selection_block = compression_block; // this branch does not use it
  settings.scale = scale;
  const BranchResult r = branch_attention(Branch::kCompressed, q, k, v, std::nullopt, settings,
                                          document_start, {true, false});
  return {r.o, r.lse};
}

std::tuple<Tensor, Tensor> selected_attention_op(const Tensor& q, const Tensor& k, const Tensor& v,
                                                 const Tensor& indices, int64_t selection_block,
                                                 double scale,
                                                 const OptionalTensor& document_start) {
  Settings settings;
  settings.sizes.selection_block = selection_block;
  settings.sizes.compression_block = selection_block; // this branch does not use it
  settings.sizes.compression_stride = selection_block;
  settings.scale = scale;
  const BranchResult r = branch_attention(Branch::kSelected, q, k, v, indices, settings,
                                          document_start, {true, false});
  return {r.o, r.lse};
}

std::tuple<Tensor, Tensor> sliding_attention_op(const Tensor& q, const Tensor& k, const Tensor& v,
                                                int64_t window, double scale,
                                                const OptionalTensor& document_start) {
  Settings settings;
  settings.sizes.window = window;
  settings.scale = scale;
  const BranchResult r = branch_attention(Branch::kSliding, q, k, v, std::nullopt, settings,
                                          document_start, {true, false});
  return {r.o, r.lse};
}

std::tuple<Tensor, Tensor> select_op(const Tensor& q, const Tensor& k_compressed,
                                     int64_t compression_block, int64_t compression_stride,
                                     int64_t selection_block, int64_t selected_blocks, double scale,
                                     const OptionalTensor& document_start) {
  return select(q, k_compressed,
                settings_of(compression_block, compression_stride, selection_block, selected_blocks,
                            1, scale),
                document_start);
}

Tensor pool_op(const Tensor& x, int64_t compression_block, int64_t compression_stride,
               const OptionalTensor& document_start) {
  Sizes sizes;
  sizes.compression_block = compression_block;
  sizes.compression_stride = compression_stride;
  return pool(x, sizes, document_start);
}

c10::OperatorHandle fused_operator(const char* name = "nsa::fused_attention") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

constexpr const char* kNotLoaded = "libnsa_ops_cuda.so is not loaded, which a build with nvcc has";

} // namespace

bool fused_is_loaded() {
  const auto op = fused_operator();
  return op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::AutogradCUDA);
}

Tensor fused_attention(const AttentionInputs& in, const Settings& settings) {
  using Signature = Tensor(const Tensor&, const OptionalTensor&, const OptionalTensor&,
                           const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                           const OptionalTensor&, const Tensor&, int64_t, int64_t, int64_t, int64_t,
                           int64_t, double, const OptionalTensor&, const OptionalTensor&);
  const Sizes& z = settings.sizes;
  return fused_operator().typed<Signature>().call(
      in.q, in.k[0], in.v[0], in.k[1], in.v[1], in.k[2], in.v[2], in.gates, z.compression_block,
      z.compression_stride, z.selection_block, z.selected_blocks, z.window, settings.scale,
      in.document_start, in.indices);
}

std::vector<Tensor> fused_attention_first(const AttentionInputs& in, const Settings& settings) {
  using Signature = std::vector<Tensor>(
      const Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
      const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const Tensor&, int64_t,
      int64_t, int64_t, int64_t, int64_t, double, const OptionalTensor&, const OptionalTensor&);
  at::AutoDispatchBelowADInplaceOrView guard;
  const Sizes& z = settings.sizes;
  return fused_operator("nsa::fused_attention_first")
      .typed<Signature>()
      .call(in.q, in.k[0], in.v[0], in.k[1], in.v[1], in.k[2], in.v[2], in.gates,
            z.compression_block, z.compression_stride, z.selection_block, z.selected_blocks,
            z.window, settings.scale, in.document_start, in.indices);
}

Tensor fused_attention_second(const AttentionInputs& in, const Settings& settings,
                              at::TensorList first) {
  using Signature =
      Tensor(const Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
             const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, const Tensor&,
             int64_t, int64_t, int64_t, int64_t, int64_t, double, const OptionalTensor&,
             const OptionalTensor&, at::TensorList);
  const Sizes& z = settings.sizes;
  return fused_operator("nsa::fused_attention_second")
      .typed<Signature>()
      .call(in.q, in.k[0], in.v[0], in.k[1], in.v[1], in.k[2], in.v[2], in.gates,
            z.compression_block, z.compression_stride, z.selection_block, z.selected_blocks,
            z.window, settings.scale, in.document_start, in.indices, first);
}

Tensor fused_causal_attention(const Tensor& q, const Tensor& k, const Tensor& v) {
  using Signature = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&, double);
  const auto op = fused_operator("nsa::fused_causal_attention").typed<Signature>();
  return std::get<0>(op.call(q, k, v, 0.0));
}

std::string fused_kernels(const Tensor& q) {
  return fused_operator("nsa::fused_kernels").typed<std::string(const Tensor&)>().call(q);
}

std::string why_not_fused(at::Device device, int64_t batch, int64_t heads, int64_t groups,
                          int64_t head_dimension, int64_t sequence, const Sizes& z) {
  if (!fused_is_loaded()) return kNotLoaded;
  const std::vector<int64_t> sizes{z.compression_block, z.compression_stride, z.selection_block,
                                   z.selected_blocks, z.window};
  return fused_operator("nsa::why_not_fused")
      .typed<std::string(const Tensor&, int64_t, int64_t, int64_t, at::IntArrayRef)>()
      .call(at::empty({0, heads, head_dimension}, device), batch, groups, sequence, sizes);
}

std::string why_not_fused_causal(at::Device device, int64_t batch, int64_t heads, int64_t groups,
                                 int64_t head_dimension, int64_t sequence) {
  if (!fused_is_loaded()) return kNotLoaded;
  return fused_operator("nsa::why_not_fused_causal")
      .typed<std::string(const Tensor&, int64_t, int64_t, int64_t)>()
      .call(at::empty({0, heads, head_dimension}, device), batch, groups, sequence);
}

int compute_capability(at::Device device) {
  if (!device.is_cuda() || !fused_is_loaded()) return 0;
  return static_cast<int>(fused_operator("nsa::compute_capability")
                              .typed<int64_t(const Tensor&)>()
                              .call(at::empty({0}, device)));
}

TORCH_LIBRARY(nsa, library) {
  library.def(
      "attention(Tensor q, Tensor? k_compressed, Tensor? v_compressed, Tensor? k_selected, "
      "Tensor? v_selected, Tensor? k_sliding, Tensor? v_sliding, Tensor gates, *, "
      "int compression_block=32, int compression_stride=16, int selection_block=64, "
      "int selected_blocks=16, int window=512, float scale=0., Tensor? document_start=None, "
      "Tensor? indices=None, str kernels=\"aten\") -> Tensor",
      &attention_op);
  library.def("compressed_attention(Tensor q, Tensor k, Tensor v, *, int compression_block=32, "
              "int compression_stride=16, float scale=0., Tensor? document_start=None) "
              "-> (Tensor o, Tensor lse)",
              &compressed_attention_op);
  library.def("selected_attention(Tensor q, Tensor k, Tensor v, Tensor indices, *, "
              "int selection_block=64, float scale=0., Tensor? document_start=None) "
              "-> (Tensor o, Tensor lse)",
              &selected_attention_op);
  library.def("sliding_attention(Tensor q, Tensor k, Tensor v, *, int window=512, float scale=0., "
              "Tensor? document_start=None) -> (Tensor o, Tensor lse)",
              &sliding_attention_op);
  library.def("select(Tensor q, Tensor k_compressed, *, int compression_block=32, "
              "int compression_stride=16, int selection_block=64, int selected_blocks=16, "
              "float scale=0., Tensor? document_start=None) -> (Tensor scores, Tensor indices)",
              &select_op);
  library.def("pool(Tensor x, *, int compression_block=32, int compression_stride=16, "
              "Tensor? document_start=None) -> Tensor",
              &pool_op);
  library.def("rope(Tensor x, Tensor cos, Tensor sin) -> Tensor", &rope);
  // libnsa_ops_cuda.so implements it for CUDA with its own autograd; scale 0 means 1 / sqrt(D).
  library.def("fused_attention(Tensor q, Tensor? k_compressed, Tensor? v_compressed, "
              "Tensor? k_selected, Tensor? v_selected, Tensor? k_sliding, Tensor? v_sliding, "
              "Tensor gates, int compression_block, int compression_stride, int selection_block, "
              "int selected_blocks, int window, float scale, Tensor? document_start, "
              "Tensor? indices) -> Tensor");
  // The same in two runs. The first returns all results without gradients; the second takes them
  // and has gradients.
  library.def("fused_attention_first(Tensor q, Tensor? k_compressed, Tensor? v_compressed, "
              "Tensor? k_selected, Tensor? v_selected, Tensor? k_sliding, Tensor? v_sliding, "
              "Tensor gates, int compression_block, int compression_stride, int selection_block, "
              "int selected_blocks, int window, float scale, Tensor? document_start, "
              "Tensor? indices) -> Tensor[]");
  library.def("fused_attention_second(Tensor q, Tensor? k_compressed, Tensor? v_compressed, "
              "Tensor? k_selected, Tensor? v_selected, Tensor? k_sliding, Tensor? v_sliding, "
              "Tensor gates, int compression_block, int compression_stride, int selection_block, "
              "int selected_blocks, int window, float scale, Tensor? document_start, "
              "Tensor? indices, Tensor[] first) -> Tensor");
  // The dense twin's attention, implemented in the same way.
  library.def("fused_causal_attention(Tensor q, Tensor k, Tensor v, float scale) "
              "-> (Tensor o, Tensor lse)");
  library.def("fused_kernels(Tensor q) -> str");
  // q is [..., H, D]; sizes: compression block and stride, selection block, blocks, window.
  library.def("why_not_fused(Tensor q, int batch, int groups, int sequence, int[] sizes) -> str");
  library.def("why_not_fused_causal(Tensor q, int batch, int groups, int sequence) -> str");
  library.def("compute_capability(Tensor like) -> int");
}

} // namespace nsa::ops
