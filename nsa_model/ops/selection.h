// From compressed attention to selected blocks: Eq. 9 to 11 on tensors.
//
// Pure functions of tensors on any device; no host synchronisation.
#pragma once

#include "nsa_model/reference/grid.h"

#include <ATen/ATen.h>

namespace nsa::ops {

using reference::Sizes;

// Eq. 9 and 10. probability: [N, C, K], p_cmp already summed over the heads of a group, zero for
// compressed tokens that a query does not see. Returns [N, C, blocks], by shared strides.
at::Tensor block_scores(const at::Tensor& probability, int64_t blocks, const Sizes& sizes);

// Eq. 11. scores: [N, C, blocks], not negative, for queries at positions first_position .. + C - 1.
// Returns int32 [N, C, n], ascending, then -1. Blocks 0, c - 1 and c are always selected and
// included in the count. The others are selected by score; ties go to the lower block.
at::Tensor select_blocks(const at::Tensor& scores, int64_t first_position, const Sizes& sizes);

// bool [N, C, blocks]: true where a block is not among `indices` [N, C, n].
at::Tensor hidden_blocks(const at::Tensor& indices, int64_t blocks);

} // namespace nsa::ops
