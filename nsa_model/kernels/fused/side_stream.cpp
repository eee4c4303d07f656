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
  // It is never destroyed, because a thread may end after the driver has shut down.
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

SideFork::~SideFork() {
  if (forked_) static_cast<void>(join());
}

cudaError_t SideFork::fork(cudaStream_t stream) {
  cudaError_t error = side_stream(side_);
  if (error == cudaSuccess) error = cudaEventRecord(side_.ready, stream);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(side_.stream, side_.ready);
  if (error != cudaSuccess) return error;
  from_ = stream;
  forked_ = true;
  return cudaSuccess;
}

cudaError_t SideFork::join() {
  cudaError_t error = cudaEventRecord(side_.done, side_.stream);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(from_, side_.done);
  if (error == cudaSuccess) forked_ = false;
  return error;
}

} // namespace nsa::kernels
