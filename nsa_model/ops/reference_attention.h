// attention.kernels = "reference": the float64 oracle behind the same call, with its own gradients.
// CPU only, and slow on purpose.
//
// Thread-safe.
#pragma once

#include "nsa_model/ops/attention.h"

namespace nsa::ops {

at::Tensor reference_attention(const AttentionInputs& inputs, const Settings& settings);

} // namespace nsa::ops
