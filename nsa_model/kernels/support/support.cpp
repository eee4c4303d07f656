#include "nsa_model/kernels/support/support.h"

#include <algorithm>

#include "nsa_model/kernels/common/limits.h"
#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/portable/attend.h"

namespace nsa::kernels {
namespace {

// That a CTA may have (CUDA C++ Programming Guide, technical specifications); the least for what is
// not listed.
int shared_bytes_of(int compute_capability) {
  switch (compute_capability) {
  case 80:
  case 87:
    return 163 * 1024;
  case 90:
  case 100:
  case 103:
    return kMostSharedBytes;
  default:
    return 99 * 1024;
  }
}

} // namespace

const char* unsupported_reason(int compute_capability, int query_heads, int groups, int head_dim,
                               int sequence, int compress_length, int compress_stride, int block,
                               int slots, int window) {
  if (compute_capability < 80) {
    return "the fused attention kernels need compute capability 8.0; on this GPU set "
           "attention.kernels = \"aten\"";
  }
  if (head_dim != 64 && head_dim != 128) {
    return "the fused attention kernels serve heads of 64 and 128 dimensions; for others set "
           "attention.kernels = \"aten\"";
  }
  if (!serves_heads(query_heads, groups)) {
    return "the fused attention kernels serve 1 to 16 query heads a KV group (6 is the tuned "
           "count); for other head counts set attention.kernels = \"aten\"";
  }
  if (compress_length != kCompressLength || compress_stride != kCompressStride || block != kBlock ||
      slots != kSlots || window != kWindow) {
    return "the fused attention kernels serve l = 32, d = 16, block 64, 16 selected blocks and a "
           "window of 512; for other sizes set attention.kernels = \"aten\"";
  }
  const KernelFamily family = kernel_family(compute_capability, head_dim);
  if (!serves_length(sequence, family)) {
    return family == KernelFamily::kHopper
               ? "the fused attention kernels serve sequences of 1 to 1,048,576 tokens; for longer "
                 "ones set attention.kernels = \"aten\""
               : "the fused attention kernels of this GPU and head dimension serve sequences of 1 "
                 "to 131,072 tokens; for longer ones set attention.kernels = \"aten\"";
  }
  return too_large_reason(compute_capability, 1, sequence, query_heads, groups, head_dim);
}

const char* too_large_reason(int compute_capability, int64_t batch, int64_t sequence,
                             int query_heads, int groups, int head_dim) {
  if (!serves_lanes(batch, groups)) {
    return "the fused attention kernels serve 1 to 65,535 pairs of a sequence and a KV group; for "
           "more set attention.kernels = \"aten\"";
  }
  if (!serves_rows(batch, sequence, groups)) {
    return "the fused attention kernels serve up to 134,217,727 pairs of a token and a KV group; "
           "for more set attention.kernels = \"aten\"";
  }
  const AttentionShape shape = {1, static_cast<int>(sequence), groups, query_heads / groups,
                                head_dim};
  const bool portable = kernel_family(compute_capability, head_dim) == KernelFamily::kPortable;
  const int scores = portable ? portable::selection_shared_bytes(shape) : 0;
  if (std::max(scores, block_lists_shared_bytes(shape.sequence)) >
      shared_bytes_of(compute_capability)) {
    return "the fused attention kernels keep a score and a bitmap of tokens for every block of a "
           "sequence in shared memory, of which this GPU has too little for one this long; set "
           "attention.kernels = \"aten\"";
  }
  return nullptr;
}

} // namespace nsa::kernels
