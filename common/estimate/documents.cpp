#include "common/estimate/estimate.h"

#include "common/estimate/sizes.h"
#include "common/spec/branches.h"
#include "nsa_model/choice/first_tokens.h"

#include <algorithm>

// The memory that packed documents need in the NSA kernels.

namespace nsa::estimate {

namespace {

using spec::RunSpec;

// Upper bounds of padding of packed-document batches (nsa_model/kernels/fused/document_plan.h,
// ops_cuda/fused_call.cpp). They are the factor over their tokens, the tokens on top, and the parts
// to which an operator rounds the sum up. documents_test compares document_batches() with these
// kernels' sizes.
constexpr double kMostFilling = 1.5;
constexpr int64_t kFreeFilling = 4096, kRoundingParts = 16;
// Work division of the kernels (nsa_model/kernels/block_lists, fused), in this order:
// - (token, block) pairs for each partial dK and dV of lists;
// - tokens times groups whose lists are summed together, and whose partial outputs are kept;
// - tokens times groups whose dQ is kept together;
// - most sections of a sequence;
// - partial dK and dV of an interval: one for each 128 keys, and four for each SM.
constexpr int64_t kPairsOfAUnit = 512, kRowsOfLists = 65536, kRowsOfARound = 32768,
                  kMostSections = 7, kColumnKeys = 128, kMostShares = 4 * 132;
// Partial outputs of a pair have BF16 values and log-sums, or this many bytes for these heads of a
// group with 64 dimensions.
constexpr int64_t kPackedPair = 512, kPackedHeads = 6, kTunedWidth = 64;

// Tokens times groups whose lists the NSA kernels process together; one sequence may have more.
int64_t rows_of_lists(const RunSpec& spec) {
  return spec.model.head_dimension == kTunedWidth ? kRowsOfLists : kRowsOfLists / 2;
}

// Bytes of a layer's forward workspace in the NSA kernels for `tokens` tokens: partial outputs of
// the (token, block) pairs of a round. The portable kernels list all tokens of a sequence or none.
// Hopper's list at most those that see more blocks than are selected.
int64_t forward_workspace(const RunSpec& spec, int64_t tokens) {
  const auto& m = spec.model;
  const auto& n = spec.nsa;
  const int64_t length = spec.train.sequence_length;
  if (length <= choice::kWholeUpTo || !has(n, spec::Branch::kSelected)) return 0;
  const int64_t heads = m.heads / m.kv_groups, log_sums = (heads + 3) / 4 * 4;
  const bool packed = heads == kPackedHeads && m.head_dimension == kTunedWidth;
  const int64_t pair = packed ? kPackedPair : heads * m.head_dimension * kBf16 + log_sums * kFp32;
  const int64_t rows = std::min(tokens * m.kv_groups, std::max(length, rows_of_lists(spec)));
  const int64_t seen = n.selected_blocks * n.selection_block;
  const int64_t listed =
      length > choice::kPortableWholeUpTo ? rows : rows * (length - seen) / length;
  return listed * n.selected_blocks * pair;
}

// Bytes of a layer's backward workspace in the NSA kernels for `tokens` tokens. It has statistics
// of rows, FP32 gradients of compressed keys, and partial dK and dV of the first tokens. It also
// has the larger of two parts. One is those of the compressed branch. The other is dQ of a round's
// selected blocks with dK and dV of the lists. The portable kernels have partial dK and dV of one
// branch instead, or lists of all tokens. For heads of 64 dimensions the former are never more than
// Hopper's, so only wide heads count them.
int64_t backward_workspace(const RunSpec& spec, int64_t tokens) {
  const auto& m = spec.model;
  const auto& n = spec.nsa;
  const int64_t query = m.heads * m.head_dimension * kBf16;
  const int64_t unit = 2 * n.selection_block * m.head_dimension * kFp32;
  const int64_t statistics = branch_count(spec) * 2 * kFp32 * (m.heads + 3 * m.kv_groups);
  const int64_t length = spec.train.sequence_length;
  const int64_t kv_heads = (tokens + length - 1) / length * m.kv_groups;
  const auto columns = [&](int64_t keys) { // bytes for one sequence
    return (kMostShares + kv_heads * (keys / kColumnKeys + 2)) * 2 * unit;
  };
  const auto lists = [&](int64_t listed) { // tokens of a sequence
    const int64_t sections = std::min(kMostSections, (listed + kRowsOfARound - 1) / kRowsOfARound);
    const int64_t together = std::min(kv_heads, std::max<int64_t>(1, rows_of_lists(spec) / length));
    const int64_t keys = together * unit *
                         (listed * n.selected_blocks / kPairsOfAUnit +
                          (length / n.selection_block + 1) * (sections + 1) / 2);
    const int64_t round = std::max(kRowsOfARound, listed / kMostSections + kPairsOfAUnit);
    return keys + std::min(kv_heads * listed, round) * n.selected_blocks * query / m.kv_groups;
  };
  const int64_t pooled = 2 * kFp32 * m.kv_groups * m.head_dimension / n.compression_stride;
  const int64_t rows = tokens * (statistics + pooled);
  int64_t hopper = columns(length / n.compression_stride);
  if (length > choice::kWholeUpTo)
    hopper = std::max(hopper, lists(length - choice::kMaskedBesideLists));
  hopper += columns(std::min<int64_t>(length, choice::kWholeUpTo));
  int64_t portable = length > choice::kPortableWholeUpTo ? lists(length) : 0;
  if (m.head_dimension != kTunedWidth) {
    const int64_t units = m.kv_groups * unit * n.selected_blocks / kPairsOfAUnit +
                          2 * m.kv_groups * unit / n.selection_block;
    portable = std::max(portable, tokens * units);
  }
  return rows + std::max(hopper, portable);
}

} // namespace

DocumentBatches document_batches(const RunSpec& spec) {
  const auto& m = spec.model;
  const auto& n = spec.nsa;
  const int64_t query = m.heads * m.head_dimension, kv = m.kv_groups * m.head_dimension;
  const int64_t sets = branch_count(spec);
  const int64_t tokens = spec.train.micro_batch * spec.train.sequence_length;
  DocumentBatches out;
  out.tokens = static_cast<int64_t>(kMostFilling * double(tokens)) + kFreeFilling;
  const int64_t part = std::max<int64_t>(1, tokens / kRoundingParts);
  out.tokens = (out.tokens + part - 1) / part * part;
  // Branch outputs, log-sum-exp, selected blocks and the tokens of each block, pooled keys and
  // values.
  int64_t kept = sets * (query * kBf16 + m.heads * kFp32);
  if (has(spec.nsa, spec::Branch::kSelected)) kept += 2 * m.kv_groups * n.selected_blocks * kIndex;
  if (has(spec.nsa, spec::Branch::kCompressed)) kept += 2 * kv * kBf16 / n.compression_stride;
  out.kept = (out.tokens - tokens) * kept;
  // One batch at a time, which rarely has more tokens than the micro-batch, unless that is small.
  // The forward pass has queries and outputs, keys and values of the branches (un-pooled ones, if
  // they are pooled), and gates. The backward pass has queries and their two gradients, keys and
  // values of the branches (the un-pooled ones are not read) with their gradients, and gates.
  const int64_t gates = sets * m.heads * kFp32;
  const int64_t forward_copies = 2 * query * kBf16 + 2 * sets * kv * kBf16 + gates;
  const int64_t copies = 3 * query * kBf16 + (4 * sets - 2) * kv * kBf16 + 2 * gates;
  const int64_t batch = tokens + kFreeFilling / 4;
  out.workspace = std::max(forward_workspace(spec, batch) + batch * forward_copies,
                           backward_workspace(spec, batch) + batch * copies);
  return out;
}

} // namespace nsa::estimate
