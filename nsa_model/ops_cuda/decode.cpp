// nsa::fused_decode for CUDA. It converts tensors to parameters and launches
// nsa_model/kernels/decode. libnsa_ops.so declares the schema.
//
// Any thread; nothing waits for the device. Unsupported inputs throw c10::Error.
#include "nsa_model/kernels/decode/decode.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/ops_cuda/fused_call.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cmath>
#include <torch/library.h>

namespace nsa::ops {
namespace {

using at::Tensor;

static_assert(serves::kMostDecodeTokens == kernels::kMostDecodeTokens);

const Tensor& checked(const char* name, const Tensor& tensor, at::IntArrayRef sizes,
                      at::ScalarType type, const Tensor& q) {
  TORCH_CHECK(tensor.sizes() == sizes && tensor.scalar_type() == type &&
                  tensor.device() == q.device() && tensor.is_contiguous() &&
                  reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 16 == 0,
              "fused decoding: ", name, " is ", tensor.scalar_type(), " ", tensor.sizes(), " on ",
              tensor.device(), ", expected contiguous ", type, " ", sizes, " on ", q.device(),
              " from an address that 16 divides");
  return tensor; // NOLINT(bugprone-return-const-ref-from-parameter): of a caller that owns it
}
const __nv_bfloat16* cache(const char* name, const Tensor& tensor, int64_t rows, const Tensor& q,
                           int64_t groups) {
  return static_cast<const __nv_bfloat16*>(
      checked(name, tensor, {q.size(0), groups, rows, q.size(3)}, at::kBFloat16, q).data_ptr());
}

std::tuple<Tensor, Tensor> fused_decode(const Tensor& q_given, const Tensor& k_compressed,
                                        const Tensor& v_compressed, const Tensor& k_selected,
                                        const Tensor& v_selected, const Tensor& k_sliding,
                                        const Tensor& v_sliding, const Tensor& gates_given,
                                        const Tensor& lengths, double scale) {
  const Tensor q = q_given.contiguous(), gates = gates_given.contiguous();
  const c10::DeviceGuard guard(q.device());
  const int64_t batch = q.size(0), heads = q.size(2), groups = k_selected.size(1),
                tokens = k_selected.size(2);
  TORCH_CHECK(serves::decode(batch, heads, groups, q.size(3), tokens) &&
                  compute_capability_of(q) >= 80,
              "fused decoding serves 1 to 16 heads of 64 dimensions a KV group, 1 to ",
              kernels::kMostDecodeTokens,
              " tokens and compute capability 8.0 and above; for others write kernels = \"aten\"");
  checked("q", q, q.sizes(), at::kBFloat16, q);
  const int64_t compressed = k_compressed.size(2), window = k_sliding.size(2);
  TORCH_CHECK(compressed >= kernels::compressed_count(static_cast<int>(tokens)) &&
                  window >= std::min<int64_t>(tokens, kernels::kWindow),
              "fused decoding: caches of ", compressed, " compressed tokens and a window of ",
              window, " are too few for ", tokens, " tokens");
  const int kv_heads = static_cast<int>(batch * groups);
  const Tensor out = at::empty_like(q);
  const Tensor indices = at::empty({batch, groups, kernels::kSlots}, q.options().dtype(at::kInt));
  kernels::DecodeParams params{};
  params.batch = static_cast<int>(batch);
  params.groups = static_cast<int>(groups);
  params.heads = static_cast<int>(heads / groups);
  params.gates_of_token = static_cast<int>(gates.size(2));
  params.tokens = static_cast<int>(tokens);
  params.compressed_rows = static_cast<int>(compressed);
  params.window_rows = static_cast<int>(window);
  params.scale =
      static_cast<float>(scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(q.size(3))));
  params.q = static_cast<const __nv_bfloat16*>(q.data_ptr());
  params.gates =
      checked("gates", gates, {batch, 1, gates.size(2), 3}, at::kFloat, q).data_ptr<float>();
  params.k_compressed = cache("k_compressed", k_compressed, compressed, q, groups);
  params.v_compressed = cache("v_compressed", v_compressed, compressed, q, groups);
  params.k_selected = cache("k_selected", k_selected, tokens, q, groups);
  params.v_selected = cache("v_selected", v_selected, tokens, q, groups);
  params.k_window = cache("k_sliding", k_sliding, window, q, groups);
  params.v_window = cache("v_sliding", v_sliding, window, q, groups);
  params.lengths = checked("lengths", lengths, {batch}, at::kInt, q).data_ptr<int32_t>();
  params.out = static_cast<__nv_bfloat16*>(out.data_ptr());
  params.indices = indices.data_ptr<int32_t>();
  params.plan = kernels::plan_decode(kv_heads, params.heads, params.tokens);
  const auto bytes = static_cast<int64_t>(
      kernels::decode_workspace_bytes(params.plan, kv_heads, params.heads, params.tokens));
  const Tensor workspace =
      bytes > 0 ? at::empty({bytes}, q.options().dtype(at::kByte)) : Tensor(); // usually empty
  params.workspace = bytes > 0 ? workspace.data_ptr() : nullptr;
  const cudaError_t error =
      kernels::launch_decode(params, c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(error == cudaSuccess, "fused decoding: ", cudaGetErrorString(error));
  return {out, indices};
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("fused_decode", &fused_decode);
}

} // namespace nsa::ops
