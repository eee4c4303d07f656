#pragma once
// Launches of a sequence of kernels on one stream. With `overlap_launches` a kernel's blocks may
// take their places while the last blocks of the kernel before still run (programmatic dependent
// launch): they then wait in wait_for_earlier_kernels(), which every kernel here calls first.

#include <cuda_runtime.h>

#include <utility>

namespace nsa::kernels {

// Whether launches overlap. Results do not depend on it. Set before the first launch.
inline bool overlap_launches = false;

// `launched`, unless nullptr, is recorded when all CTAs have their places: what waits for it takes
// no place from them. (As a rule, not by contract: results may not depend on it.)
template <typename... Parameters, typename... Arguments>
cudaError_t launch_signalling(cudaEvent_t launched, void (*kernel)(Parameters...), dim3 grid,
                              unsigned threads, std::size_t shared_bytes, cudaStream_t stream,
                              Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (overlap_launches) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (launched != nullptr) {
    attributes[count].id = cudaLaunchAttributeLaunchCompletionEvent;
    attributes[count++].val.launchCompletionEvent.event = launched;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}
template <typename... Parameters, typename... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                          std::size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  return launch_signalling(nullptr, kernel, grid, threads, shared_bytes, stream,
                           std::forward<Arguments>(arguments)...);
}

#ifdef __CUDACC__
// Every thread of every kernel calls this before it touches memory, so that one kernel's end
// implies the end of all before it.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

} // namespace nsa::kernels
