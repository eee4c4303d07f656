#include "nsa_model/kernels/fused/side_stream.h"

#include <unordered_map>

namespace nsa::kernels {
namespace {

cudaError_t make(SideStream& side) {
  cudaError_t error = cudaStreamCreateWithFlags(&side.stream, cudaStreamNonBlocking);
  for (cudaEvent_t* event : {&side.ready, &side.launched, &side.done}) {
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  }
  return error;
}

} // namespace

cudaError_t side_stream(SideStream& side) {
  // Never destroyed: a thread may end after the driver has.
  thread_local auto& of_device = *new std::unordered_map<int, SideStream>;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const auto found = of_device.find(device);
  if (found != of_device.end()) {
    side = found->second;
    return cudaSuccess;
  }
  error = make(side);
  if (error == cudaSuccess) of_device.emplace(device, side);
  return error;
}

} // namespace nsa::kernels
