// attention.kernels = "reference": the float64 oracle behind the same interface, with its own
// gradients. It runs only on the CPU and is slow.
//
// Thread-safe.
#pragma once

#include "nsa_model/ops/attention.h"

namespace nsa::ops {

at::Tensor reference_attention(const AttentionInputs& inputs, const Settings& settings);

} // namespace nsa::ops
