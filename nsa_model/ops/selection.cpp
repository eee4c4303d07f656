#include "nsa_model/ops/selection.h"

#include <limits>

namespace nsa::ops {

at::Tensor block_scores(const at::Tensor& probability, int64_t blocks, const Sizes& sizes) {
  const int64_t per_token = sizes.compression_block / sizes.compression_stride;
  const int64_t per_block = sizes.selection_block / sizes.compression_stride;
  const int64_t keys = probability.size(-1);
  // Zeros are added on both sides, so that every tap is one strided slice. The taps of block b are
  // compressed tokens per_block * b + tap, with tap from -(per_token - 1) to per_block - 1.
  // Slice-wise addition uses the same order of additions for every block. So equal probabilities
  // give equal scores.
  const int64_t left = per_token - 1;
  const int64_t width = left + blocks * per_block;
  const int64_t kept = std::min(keys, width - left);
  at::Tensor padded =
      at::zeros({probability.size(0), probability.size(1), width}, probability.options());
  padded.narrow(2, left, kept).copy_(probability.narrow(2, 0, kept));
  at::Tensor scores;
  for (int64_t tap = -left; tap < per_block; ++tap) {
    const double weight = double(reference::shared_strides(tap, 0, sizes));
    const at::Tensor slice =
        padded.slice(2, left + tap, left + tap + (blocks - 1) * per_block + 1, per_block);
    if (scores.defined()) {
      scores.add_(slice, weight);
    } else {
      scores = slice * weight;
    }
  }
  return scores;
}

namespace {

// Returns int64 keys that order like the scores and differ for every block of a query. A larger key
// is preferred. So top-k is exact, and ties go to the lower block.
at::Tensor preference(const at::Tensor& scores) {
  const int64_t blocks = scores.size(2);
  const at::Tensor block = at::arange(blocks, scores.options().dtype(at::kLong));
  // for tests: FP32 would create ties that FP64 does not have
  if (scores.scalar_type() == at::kDouble) {
    const at::Tensor order = std::get<1>(at::sort(scores, /*stable=*/true, -1, true));
    return at::empty_like(order).scatter_(2, order, (blocks - block).expand_as(order));
  }
  // The bits of a non-negative FP32 number order like integers. The low bits hold the block and
  // break ties.
  const int64_t room = int64_t(1) << 24;
  TORCH_CHECK(blocks < room, "nsa: more than 2^24 selection blocks");
  const at::Tensor bits = scores.to(at::kFloat).contiguous().view(at::kInt).to(at::kLong);
  return bits.mul(room).add_(room - 1 - block);
}

} // namespace

at::Tensor select_blocks(const at::Tensor& scores, int64_t first_position, const Sizes& sizes) {
  const int64_t count = scores.size(1), blocks = scores.size(2);
  const auto integers = scores.options().dtype(at::kLong);
  const at::Tensor block = at::arange(blocks, integers);
  const at::Tensor current = at::arange(first_position, first_position + count, integers)
                                 .div(sizes.selection_block, "floor")
                                 .unsqueeze(1);
  at::Tensor key = preference(scores);
  const at::Tensor forced = block.eq(0).logical_or(block.ge(current - 1)); // [C, blocks]
  key.masked_fill_(forced, std::numeric_limits<int64_t>::max());
  key.masked_fill_(block.gt(current), -1);

  const int64_t slots = sizes.selected_blocks;
  const int64_t taken = std::min(slots, blocks);
  auto [value, index] = at::topk(key, taken, -1, true, false);
  index.masked_fill_(value.lt(0), blocks); // a block that is not causal sorts last
  index = std::get<0>(index.sort(-1));
  index.masked_fill_(index.eq(blocks), -1);
  index = index.to(at::kInt);
  return taken == slots ? index : at::constant_pad_nd(index, {0, slots - taken}, -1);
}

at::Tensor hidden_blocks(const at::Tensor& indices, int64_t blocks) {
  // Empty slots, and blocks beyond the last one here, write into an extra column, which is removed.
  const at::Tensor column = indices.to(at::kLong);
  at::Tensor hidden =
      at::ones({indices.size(0), indices.size(1), blocks + 1}, indices.options().dtype(at::kBool));
  hidden.scatter_(2, at::where(column.lt(0), blocks, column).clamp_max_(blocks), false);
  return hidden.narrow(2, 0, blocks);
}

} // namespace nsa::ops
