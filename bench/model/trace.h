// A trace of what a device does, in Chrome's format, by the profiler that comes with LibTorch.
#pragma once

#include <ATen/Device.h>

#include <functional>
#include <string>

namespace nsa::bench {

// Kernels and copies on a GPU, operators on a CPU. `work` waits for the device before it returns.
void write_trace(const std::string& path, at::Device device, const std::function<void()>& work);

} // namespace nsa::bench
