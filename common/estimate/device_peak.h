// The peak compute rate of a GPU, for the model FLOPs utilisation (MFU). No I/O.
#pragma once

#include <string_view>

namespace nsa::estimate {

// Returns the dense BF16 tensor-core rate in FLOP/s by NVIDIA's data sheets, if `device_name`
// contains the name of a known GPU. Returns 0 for other devices and for CPUs.
double peak_bf16_flops(std::string_view device_name);

} // namespace nsa::estimate
