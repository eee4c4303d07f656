// Times of work on the current CUDA stream, and the ceilings of the machine that they are held
// against. LibTorch's CUDA part is loaded. One thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace nsa::bench {

struct Times {                          // milliseconds
  double median = 0, low = 0, high = 0; // low and high: tenth and ninetieth percentile
};

// `run` timed by events, `repeats` times after three to warm up.
Times time_of(const std::function<void()>& run, int repeats);

struct Ceilings {
  double copy_gb_s = 0;       // read and written, of a 1 GiB copy
  double product_tflop_s = 0; // BF16, 8192 x 8192 x 8192, normal random data
};
Ceilings measure_ceilings();

} // namespace nsa::bench
