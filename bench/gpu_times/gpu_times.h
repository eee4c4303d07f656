// Times of work on the current CUDA stream, and the ceilings of the machine that they are held
// against. One thread; load_kernels() comes first.
#pragma once

#include "common/base/result.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace nsa::bench {

// LibTorch's CUDA part before anything asks for a device, then libnsa_ops_cuda.so: `library`, or
// where that is empty the one beside the program or in ../lib. Fails where there is no GPU.
Status load_kernels(const std::string& library);

struct Times {                          // milliseconds
  double median = 0, low = 0, high = 0; // low and high: tenth and ninetieth percentile
  int64_t repeats = 0;
};

// Times work by events behind a fill of 1 GiB, which the GPU is busy with (some 0.3 ms on an H200)
// while the host enqueues the work: as in training, where the host is ahead, its time is none of
// the work's. The fill also leaves nothing of the work's inputs in the L2 cache.
class Timer {
public:
  Timer(); // on the current CUDA device
  // `run`, `repeats` times after three to warm up; fewer, but five at least, when they would take
  // longer than `seconds`.
  Times time(const std::function<void()>& run, int64_t repeats, double seconds = 1e9) const;

private:
  at::Tensor filled_;
};

// The most memory that LibTorch's allocator has handed out on the current CUDA device since this
// began, over what it had then.
class PeakMemory {
public:
  PeakMemory();
  int64_t bytes() const;

private:
  int64_t before_;
};

// "NVIDIA H200", of the current CUDA device, as the driver names it.
std::string device_name();

struct Ceilings {
  double copy_gb_s = 0;       // read and written, of a 1 GiB copy
  double product_tflop_s = 0; // BF16, 8192 x 8192 x 8192, normal random data
};
Ceilings measure_ceilings(const Timer& timer);

} // namespace nsa::bench
