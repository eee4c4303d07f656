#pragma once
// Which problems the attention kernels serve, and why they refuse the others: by their sizes, by
// what a launch counts, and by the shared memory of the GPU. Pure functions, any thread.

#include <cstdint>

namespace nsa::kernels {

// nullptr when served (by the family that kernel_family names); otherwise a sentence that says what
// is supported. `compute_capability` is 10 * major + minor of the device.
const char* unsupported_reason(int compute_capability, int query_heads, int groups, int head_dim,
                               int sequence, int compress_length, int compress_stride, int block,
                               int slots, int window);

// The same of a batch: nullptr when served; otherwise a sentence that names the toggle which serves
// it. `batch` sequences of `sequence` tokens; the other sizes are ones that unsupported_reason
// accepts.
const char* too_large_reason(int compute_capability, int64_t batch, int64_t sequence,
                             int query_heads, int groups, int head_dim);

} // namespace nsa::kernels
