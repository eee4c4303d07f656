// How many of a sequence's first tokens take no lists in the selected branch. The kernels
// (nsa_model/kernels/fused) and the estimate of memory (common/estimate) read the same numbers.
#pragma once

namespace nsa::choice {

// Lists cost their launches and partial results once there are any: a sequence that would have few
// of them is taken whole. Of longer ones so many tokens under masks were fastest, at 2,048 as at
// 16,384 tokens a sequence (lab "query-major-border").
inline constexpr int kWholeUpTo = 1536;
inline constexpr int kMaskedBesideLists = 1280;

} // namespace nsa::choice
