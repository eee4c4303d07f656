#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

const char* unsupported_reason(int compute_capability, int query_heads, int groups, int head_dim,
                               int sequence, int compress_length, int compress_stride, int block,
                               int slots, int window) {
  if (compute_capability < 90 || compute_capability >= 100) {
    return "the fused attention kernels use Hopper instructions (compute capability 9.0); on this "
           "GPU set attention.kernels = \"aten\"";
  }
  if (head_dim != kHeadDim) {
    return "the fused attention kernels serve heads of 64 dimensions; for others set "
           "attention.kernels = \"aten\"";
  }
  if (groups < 1 || query_heads < groups || query_heads % groups != 0 ||
      query_heads / groups > kMostHeads) {
    return "the fused attention kernels serve 1 to 16 query heads a KV group (6 is the tuned "
           "count); for other head counts set attention.kernels = \"aten\"";
  }
  if (compress_length != kCompressLength || compress_stride != kCompressStride || block != kBlock ||
      slots != kSlots || window != kWindow) {
    return "the fused attention kernels serve l = 32, d = 16, block 64, 16 selected blocks and a "
           "window of 512; for other sizes set attention.kernels = \"aten\"";
  }
  if (sequence < 1 || sequence > kMaxSequence) {
    return "the fused attention kernels serve sequences of 1 to 131,072 tokens; for longer ones "
           "set "
           "attention.kernels = \"aten\"";
  }
  return nullptr;
}

} // namespace nsa::kernels
