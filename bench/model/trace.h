// Writes a trace of a device's work in Chrome's format, using LibTorch's profiler.
#pragma once

#include <ATen/Device.h>

#include <functional>
#include <string>

namespace nsa::bench {

// Records kernels and copies on a GPU, operators on a CPU. `work` must wait for the device before
// it returns.
void write_trace(const std::string& path, at::Device device, const std::function<void()>& work);

} // namespace nsa::bench
