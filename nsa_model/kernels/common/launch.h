#pragma once
// Launches kernels of a sequence on one stream.

#include <cuda_runtime.h>

#include <utility>

namespace nsa::kernels {

// `launched`, unless nullptr, is recorded after all CTAs of the launch have started, so work that
// waits for it does not displace them. CUDA does not guarantee this, so results may not depend on
// it.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_signalling(cudaEvent_t launched, void (*kernel)(Parameters...), dim3 grid,
                              unsigned threads, std::size_t shared_bytes, cudaStream_t stream,
                              Arguments&&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeLaunchCompletionEvent;
  attribute.val.launchCompletionEvent.event = launched;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = launched != nullptr ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}
template <typename... Parameters, typename... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                          std::size_t shared_bytes, cudaStream_t stream, Arguments&&... arguments) {
  return launch_signalling(nullptr, kernel, grid, threads, shared_bytes, stream,
                           std::forward<Arguments>(arguments)...);
}

#ifdef __CUDACC__
// Every kernel begins with it. Programmatic dependent launch would need it, but no launch requests
// that (lab "overlapping-launches"), and then both instructions do nothing. Without them the
// machine code of every kernel changes, and all of them would have to be timed again.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

} // namespace nsa::kernels
