#pragma once
// Times of work on the device by CUDA events, after three runs that do not count. One thread.

#include <algorithm>
#include <vector>

#include "nsa_model/kernels/check/device.h"

namespace nsa::kernels::check {

struct Timing { // milliseconds
  double median;
  double low;  // tenth percentile
  double high; // ninetieth
};

template <typename Run> Timing time_of(Run run, int repeats) {
  cudaEvent_t start;
  cudaEvent_t stop;
  cuda_check(cudaEventCreate(&start), "event");
  cuda_check(cudaEventCreate(&stop), "event");
  std::vector<double> times;
  for (int i = 0; i < repeats + 3; ++i) {
    cuda_check(cudaEventRecord(start), "record");
    run();
    cuda_check(cudaEventRecord(stop), "record");
    cuda_check(cudaEventSynchronize(stop), "wait");
    float milliseconds = 0.0f;
    cuda_check(cudaEventElapsedTime(&milliseconds, start, stop), "elapsed");
    if (i >= 3) times.push_back(static_cast<double>(milliseconds));
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10]};
}

} // namespace nsa::kernels::check
