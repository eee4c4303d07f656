// What a GPU can compute at most, for the model's FLOP utilisation (MFU). Pure.
#pragma once

#include <string_view>

namespace nsa::estimate {

// Dense BF16 tensor-core rate in FLOP/s of the device whose name holds a known GPU's, by NVIDIA's
// data sheets; 0: not known, as of any CPU.
double peak_bf16_flops(std::string_view device_name);

} // namespace nsa::estimate
