#include "nsa_model/choice/serves.h"

namespace nsa::serves {

std::string_view why_not_regrouped(const RegroupedBranch& b) {
  if (!b.gpu) return "FlashAttention is of GPUs";
  if (!b.narrow) return "FlashAttention takes BF16 and FP16";
  if (b.head_dimension % 8 != 0 || b.head_dimension > 256)
    return "FlashAttention takes heads of a multiple of 8 dimensions, up to 256";
  if (b.length == 0) return "there is no token";
  if (b.compressed && (b.length % b.compression_stride != 0 || b.length < b.compression_block))
    return "the sequence is no multiple of nsa.compression_stride, or shorter than a block";
  if (b.given_indices) return "the indices are the caller's";
  return "";
}

} // namespace nsa::serves
