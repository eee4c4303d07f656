// Times of work on the current CUDA stream, and the ceilings of the machine to compare them with.
// One thread. Call load_kernels() first.
#pragma once

#include "common/base/result.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace nsa::bench {

// Loads libnsa_ops_cuda.so: `library`, or if that is empty the one beside the program or in ../lib.
// LibTorch's CUDA part is loaded first, before anything asks for a device. Fails if there is no
// GPU.
Status load_kernels(const std::string& library);

struct Times {                          // in milliseconds
  double median = 0, low = 0, high = 0; // low, high: tenth and ninetieth percentile
  int64_t repeats = 0;
};

// Times work with events after a fill of 1 GiB. The GPU executes the fill (about 0.3 ms on an H200)
// while the host enqueues the work. So host time is not counted, as in training, where the host
// runs ahead. The fill also evicts the work's inputs from the L2 cache.
class Timer {
public:
  Timer(); // for the current CUDA device
  // Runs `run` three times to warm up, then times it `repeats` times. If that would take longer
  // than `seconds`, it runs fewer times, but at least five.
  Times time(const std::function<void()>& run, int64_t repeats, double seconds = 1e9) const;

private:
  at::Tensor filled_;
};

// The peak memory that LibTorch's allocator has handed out on the current CUDA device since
// construction, minus the amount at construction.
class PeakMemory {
public:
  PeakMemory();
  int64_t bytes() const;

private:
  int64_t before_;
};

// Name of the current CUDA device from the driver, "NVIDIA H200".
std::string device_name();

struct Ceilings {
  double copy_gb_s = 0;       // a 1 GiB copy, reads and writes counted
  double product_tflop_s = 0; // BF16, 8192 x 8192 x 8192, normal random data
};
Ceilings measure_ceilings(const Timer& timer);

} // namespace nsa::bench
