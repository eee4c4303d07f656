#pragma once
// Times of work on the device by CUDA events, after three warm-up runs. One thread.

#include <algorithm>
#include <utility>
#include <vector>

#include "bench/kernel_cases/device.h"

namespace nsa::kernels::check {

struct Timing { // milliseconds
  double median;
  double low;  // tenth percentile
  double high; // ninetieth
};

inline Timing timing_of(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times[times.size() / 10], times[times.size() * 9 / 10]};
}

// Appends `repeats` times.
template <typename Run> void add_times(Run run, int repeats, std::vector<double>& times) {
  cudaEvent_t start;
  cudaEvent_t stop;
  cuda_check(cudaEventCreate(&start), "event");
  cuda_check(cudaEventCreate(&stop), "event");
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
}

template <typename Run> Timing time_of(Run run, int repeats) {
  std::vector<double> times;
  add_times(run, repeats, times);
  return timing_of(std::move(times));
}

} // namespace nsa::kernels::check
