// What the operations of this folder share: how a tensor goes to a launcher, and what its answer
// means. Any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAStream.h>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace nsa::ops::on_cuda {

inline __nv_bfloat16* bf16(const at::Tensor& tensor) {
  return static_cast<__nv_bfloat16*>(tensor.data_ptr());
}

inline cudaStream_t current_stream() {
  return c10::cuda::getCurrentCUDAStream().stream();
}

inline void check_cuda(cudaError_t error, const char* what) {
  TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// The major compute capability of a tensor's GPU.
inline int major_of(const at::Tensor& tensor) {
  int major = 0;
  check_cuda(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, tensor.device().index()),
      "compute capability");
  return major;
}

// Kernels load 16 bytes at a time.
inline bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}
inline bool is_aligned(const at::Tensor& tensor) {
  return tensor.is_contiguous() && is_aligned(tensor.data_ptr());
}

} // namespace nsa::ops::on_cuda
