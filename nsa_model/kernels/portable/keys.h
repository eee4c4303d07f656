#pragma once
// Common parts of the portable attention kernels: one branch's keys, and the shared memory that
// every GPU from compute capability 8.0 has.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels::portable {

// Shared memory that a CTA may use. Compute capabilities 8.6, 8.9 and 12.x have the least.
inline constexpr int kLeastSharedBytes = 99 * 1024;

// One branch's keys. kWindow: the last 512 tokens; kCompressed: compressed tokens that are
// complete; kBlocks: the blocks in `indices`, up to the token itself.
struct Keys {
  KeyRange range = KeyRange::kWindow;
  const __nv_bfloat16* k = nullptr; // [batch, sequence or compressed_count, groups, D]
  const __nv_bfloat16* v = nullptr; // as k
};

} // namespace nsa::kernels::portable
