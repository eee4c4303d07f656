#include "nsa_model/choice/serves.h"

namespace nsa::serves {

namespace {

// Shared memory of a CTA by compute capability (CUDA C++ Programming Guide, technical
// specifications). An unlisted one gets the smallest value.
int64_t shared_bytes_of(int compute_capability) {
  switch (compute_capability) {
  case 80:
  case 87:
    return 163 << 10;
  case 90:
  case 100:
  case 103:
    return kHopperSharedBytes;
  default:
    return 99 << 10;
  }
}

std::string number(int64_t value) {
  return std::to_string(value);
}

void add_heads(const AttentionProblem& p, Reasons& reasons) {
  if (p.groups < 1 || p.heads < p.groups || p.heads % p.groups != 0 ||
      p.heads / p.groups > kMostGroupHeads)
    reasons.push_back({"our kernels serve 1 to 16 query heads a KV group, not " + number(p.heads) +
                           " heads in " + number(p.groups) + " groups",
                       {"model.heads", "model.kv_groups"}});
}

void add_sequence(const AttentionProblem& p, int64_t most, Reasons& reasons) {
  if (p.sequence < 1 || p.sequence > most)
    reasons.push_back({"our kernels serve sequences of up to " + number(most) +
                           " tokens for this GPU and head dimension, not " + number(p.sequence),
                       {"train.sequence_length"}});
}

// Checks the limits of launch dimensions, for sizes that add_heads and add_sequence accept.
void add_batch(const AttentionProblem& p, Reasons& reasons) {
  if (p.batch < 1 || p.batch > kMostKvHeads / p.groups ||
      p.batch > kMostRows / p.groups / p.sequence)
    reasons.push_back({"our kernels serve up to " + number(kMostKvHeads) +
                           " pairs of a sequence and a KV group, and " + number(kMostRows) +
                           " of a token and a KV group",
                       {"train.micro_batch", "train.sequence_length", "model.kv_groups"}});
}

} // namespace

Reasons why_not_attention(const AttentionProblem& p) {
  Reasons reasons;
  if (p.compute_capability < 80) reasons.push_back({"our kernels need compute capability 8.0", {}});
  if (p.head_dimension != 64 && p.head_dimension != 128)
    reasons.push_back(
        {"our kernels serve heads of 64 or 128 dimensions, not " + number(p.head_dimension),
         {"model.head_dimension"}});
  add_heads(p, reasons);
  if (p.nsa != NsaSizes{})
    reasons.push_back(
        {"our kernels serve the paper's sizes of NSA: window 512, compression_block 32, "
         "compression_stride 16, selection_block 64, selected_blocks 16",
         {"nsa.window", "nsa.compression_block", "nsa.compression_stride", "nsa.selection_block",
          "nsa.selected_blocks"}});
  const bool hopper = hopper_attention(p.compute_capability, p.head_dimension);
  add_sequence(p, hopper ? kMostTokens : kMostPortableTokens, reasons);
  if (!reasons.empty()) return reasons;
  add_batch(p, reasons);
  const int64_t scores =
      hopper ? 0 : portable_selection_bytes(p.heads / p.groups, p.head_dimension, p.sequence);
  if (std::max(scores, block_lists_bytes(p.sequence)) > shared_bytes_of(p.compute_capability))
    reasons.push_back(
        {"our kernels keep a score and a bitmap of tokens for every block of a sequence in "
         "shared memory, of which this GPU has too little for " +
             number(p.sequence) + " tokens",
         {"train.sequence_length"}});
  return reasons;
}

Reasons why_not_causal(const AttentionProblem& p) {
  Reasons reasons;
  if (p.compute_capability != 90)
    reasons.push_back({"our kernels need compute capability 9.0", {}});
  if (p.head_dimension != 64)
    reasons.push_back({"our kernels serve heads of 64 dimensions, not " + number(p.head_dimension),
                       {"model.head_dimension"}});
  add_heads(p, reasons);
  add_sequence(p, kMostPortableTokens, reasons);
  if (reasons.empty()) add_batch(p, reasons);
  return reasons;
}

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
