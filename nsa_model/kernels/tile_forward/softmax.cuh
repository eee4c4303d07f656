#pragma once
// The running softmax of the query-major forward. Device code only.

#include <cmath>

#include "nsa_model/kernels/common/quad.cuh"
#include "nsa_model/kernels/tile_forward/config.h"

namespace nsa::kernels::tile_forward {

#if NSA_HOPPER_CODE

// Running softmax of the two rows that a thread shares with its quad. Its inputs are raw scores;
// the scale is folded into the exponent. Probabilities are relative to a reference. The reference
// follows the row's maximum only if that has grown by a factor of 2^kSlack. The result is the same,
// and sums and outputs are rarely rescaled.
struct Softmax {
  static constexpr float kSlack = 8.0f;
  float reference[2] = {-INFINITY, -INFINITY};
  float sum[2] = {0.0f, 0.0f};

  // Turns scores into unnormalised probabilities. If it returns true (the same in all lanes), the
  // caller must multiply earlier outputs by `factor`.
  template <int kCount>
  __device__ __forceinline__ bool update(float (&scores)[kCount], float scale_log2,
                                         float (&factor)[2]) {
    float highest[2][2] = {{reference[0], reference[0]}, {reference[1], reference[1]}};
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      highest[i / 2 % 2][i % 2] = fmaxf(highest[i / 2 % 2][i % 2], scores[i]);
    float peak[2] = {fmaxf(highest[0][0], highest[0][1]), fmaxf(highest[1][0], highest[1][1])};
    // Each thread compares its own columns, and the quad's maximum is needed only if one has grown.
    // -inf - -inf is NaN, which exceeds nothing, so rows that have seen no key change nothing.
    const auto grown = [&](int r) { return (peak[r] - reference[r]) * scale_log2 > kSlack; };
    const bool any_grown = __any_sync(~0u, grown(0) || grown(1));
    if (any_grown) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        peak[r] = largest_of_quad(peak[r]);
        // A row's reference depends only on its own scores. Neighbours in the warp may be later
        // tokens, and no bit of the row may depend on them.
        const bool follows = grown(r);
        factor[r] = follows
                        ? exp2_approximate(fmaf(reference[r], scale_log2, -(peak[r] * scale_log2)))
                        : 1.0f;
        reference[r] = follows ? peak[r] : reference[r];
        sum[r] *= factor[r];
      }
    }
    const float offset[2] = {reference[0] == -INFINITY ? 0.0f : reference[0] * scale_log2,
                             reference[1] == -INFINITY ? 0.0f : reference[1] * scale_log2};
    float partial[2][2] = {}; // two sums keep the chains of additions short
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      scores[i] = exp2_approximate(fmaf(scores[i], scale_log2, -offset[i / 2 % 2]));
      partial[i / 2 % 2][i % 2] += scores[i];
    }
    sum[0] += partial[0][0] + partial[0][1];
    sum[1] += partial[1][0] + partial[1][1];
    return any_grown;
  }
};

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::tile_forward
