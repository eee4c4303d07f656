#include "nsa_model/kernels/common/tensor_map.h"

#include <atomic>
#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

EncodeTiled encode_function() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
      entry = nullptr;
    }
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

cudaError_t encode(CUtensorMap* map, const __nv_bfloat16* tensor, const cuuint64_t (&sizes)[4],
                   const cuuint64_t (&strides)[3], const cuuint32_t (&box)[4]) {
  const EncodeTiled function = encode_function();
  if (function == nullptr) return cudaErrorNotSupported;
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  const auto make = [&] {
    return function(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<__nv_bfloat16*>(tensor),
                    sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                    CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = make();
  if (result != CUDA_SUCCESS) {
    // The driver's call needs a context. The runtime creates one for a thread at its first call
    // that needs it. Autograd's thread has made no such call if all its memory comes from a cache.
    // The documentation does not say which error results.
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaSetDevice(device);
    if (error != cudaSuccess) return error;
    result = make();
  }
  return static_cast<cudaError_t>(result); // both types use the same numbers
}

cuuint64_t row_bytes(int dim) {
  return static_cast<cuuint64_t>(dim) * sizeof(__nv_bfloat16);
}

// Attributes of the current device are queried once a device.
constexpr int kMaxDevices = 64;
int cached_attribute(std::atomic<int> (&cache)[kMaxDevices], cudaDeviceAttr attribute) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMaxDevices) return 0;
  int value = cache[device].load(std::memory_order_relaxed);
  if (value == 0) {
    if (cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) return 0;
    cache[device].store(value, std::memory_order_relaxed);
  }
  return value;
}

} // namespace

cudaError_t make_token_major_map(CUtensorMap* map, const __nv_bfloat16* tensor, int batch,
                                 int tokens, int heads, int box_tokens, int box_heads, int dim) {
  const cuuint64_t row = row_bytes(dim) * static_cast<cuuint64_t>(heads);
  return encode(
      map, tensor,
      {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(heads),
       static_cast<cuuint64_t>(tokens), static_cast<cuuint64_t>(batch)},
      {row_bytes(dim), row, row * static_cast<cuuint64_t>(tokens)},
      {kPanelDims, static_cast<cuuint32_t>(box_heads), static_cast<cuuint32_t>(box_tokens), 1});
}

cudaError_t make_key_maps(CUtensorMap* k_map, CUtensorMap* v_map, const __nv_bfloat16* k,
                          const __nv_bfloat16* v, const AttentionShape& shape, int keys,
                          int box_keys) {
  const cudaError_t error =
      make_token_major_map(k_map, k, shape.batch, keys, shape.groups, box_keys, 1, shape.head_dim);
  if (error != cudaSuccess) return error;
  return make_token_major_map(v_map, v, shape.batch, keys, shape.groups, box_keys, 1,
                              shape.head_dim);
}

cudaError_t make_head_major_map(CUtensorMap* map, const __nv_bfloat16* tensor, int batch,
                                int tokens, int heads, int box_tokens, int box_heads, int dim) {
  const cuuint64_t row = row_bytes(dim) * static_cast<cuuint64_t>(heads);
  return encode(
      map, tensor,
      {static_cast<cuuint64_t>(dim), static_cast<cuuint64_t>(tokens),
       static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)},
      {row, row_bytes(dim), row * static_cast<cuuint64_t>(tokens)},
      {kPanelDims, static_cast<cuuint32_t>(box_tokens), static_cast<cuuint32_t>(box_heads), 1});
}

cudaError_t make_strided_map(CUtensorMap* map, const __nv_bfloat16* tensor, int batch, int tokens,
                             int heads, int stride, int box_rows, int box_offsets, int dim) {
  const cuuint64_t row = row_bytes(dim) * static_cast<cuuint64_t>(heads);
  return encode(
      map, tensor,
      {static_cast<cuuint64_t>(dim * heads), static_cast<cuuint64_t>(tokens / stride),
       static_cast<cuuint64_t>(stride), static_cast<cuuint64_t>(batch)},
      {row * static_cast<cuuint64_t>(stride), row, row * static_cast<cuuint64_t>(tokens)},
      {kPanelDims, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_offsets), 1});
}

int multiprocessor_count() {
  static std::atomic<int> cache[kMaxDevices];
  return cached_attribute(cache, cudaDevAttrMultiProcessorCount);
}

cudaError_t require_hopper() {
  static std::atomic<int> cache[kMaxDevices];
  return cached_attribute(cache, cudaDevAttrComputeCapabilityMajor) == 9 ? cudaSuccess
                                                                         : cudaErrorNotSupported;
}

} // namespace nsa::kernels
