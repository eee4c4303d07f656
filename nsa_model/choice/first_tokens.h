// How many first tokens of a sequence compute the selected branch without lists. The kernels
// (nsa_model/kernels/fused) and the memory estimate (common/estimate) read the same numbers.
#pragma once

namespace nsa::choice {

// Lists cost launches and partial results, so a sequence that would have few lists uses masks for
// all tokens. In longer sequences this number of masked tokens was fastest, at 2,048 and at 16,384
// tokens a sequence (lab "query-major-border").
inline constexpr int kWholeUpTo = 1536;
inline constexpr int kMaskedBesideLists = 1280;
// The portable kernels list all tokens of a sequence, or none up to this length.
inline constexpr int kPortableWholeUpTo = 2048;

} // namespace nsa::choice
