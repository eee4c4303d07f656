#pragma once
// Stores packed results: 10 bits a value with a common step for each row (common/packed_slots.h),
// directly from registers. Device code only.

#include <cfloat>

#include "nsa_model/kernels/common/packed_pieces.cuh"
#include "nsa_model/kernels/selected_forward/probabilities.cuh"

namespace nsa::kernels::selected_forward {

#if NSA_HOPPER_CODE

// Targets of a lane's pieces of its two rows: addresses for pair 0, and masks that make a pair's
// number negative if the lane stores nothing. The values are opaque to the compiler. Otherwise it
// would compute them again for every chunk, which took a tenth of the loop.
class PackedTargets {
public:
  __device__ __forceinline__ PackedTargets(PackedOut* packed, const int (&head)[2], int quad)
      : lse_mask_(keep(quad == 0 ? 0 : -1)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int place = head[r] + quad * kHeadsPerGroup; // 6 and 7 belong to no head
      exponent_mask_[r] = keep(place < kHeadsPerGroup + 2 ? 0 : -1);
      words_[r] = keep(&packed->words[head[r]][quad]);
      last_words_[r] = keep(&packed->last_words[head[r]][quad]);
      lse_[r] = keep(&packed->lse[head[r]]);
      exponents_[r] = keep(&packed->exponents[place < kHeadsPerGroup + 2 ? place : 0]);
    }
  }
  // pair < 0: stores nothing. It is one asm statement, so that each store has a predicate and none
  // has a branch.
  __device__ __forceinline__ void store(int r, int pair, const PackedPiece& piece, float lse,
                                        uint32_t step) const {
    const uint64_t offset = static_cast<uint64_t>(static_cast<uint32_t>(pair)) * sizeof(PackedOut);
    asm volatile("{\n.reg .pred listed, first, counts;\n"
                 "setp.ge.s32 listed, %0, 0;\nsetp.ge.s32 first, %1, 0;\n"
                 "setp.ge.s32 counts, %2, 0;\n"
                 "@listed st.global.cs.v4.b32 [%3], {%4, %5, %6, %7};\n"
                 "@listed st.global.cs.b32 [%8], %9;\n"
                 "@first st.global.f32 [%10], %11;\n"
                 "@counts st.global.u8 [%12], %13;\n}\n" ::"r"(pair),
                 "r"(pair | lse_mask_), "r"(pair | exponent_mask_[r]), "l"(words_[r] + offset),
                 "r"(piece.words.x), "r"(piece.words.y), "r"(piece.words.z), "r"(piece.words.w),
                 "l"(last_words_[r] + offset), "r"(piece.last_word), "l"(lse_[r] + offset),
                 "f"(with_fraction(lse, step)), "l"(exponents_[r] + offset), "r"(step >> 23)
                 : "memory");
  }

private:
  static __device__ __forceinline__ uint64_t keep(const void* pointer) {
    uint64_t address = reinterpret_cast<uint64_t>(pointer);
    asm volatile("" : "+l"(address));
    return address;
  }
  static __device__ __forceinline__ int keep(int mask) {
    asm volatile("" : "+r"(mask));
    return mask;
  }
  uint64_t words_[2];
  uint64_t last_words_[2];
  uint64_t lse_[2];
  uint64_t exponents_[2];
  int lse_mask_;
  int exponent_mask_[2];
};

// Stores the outputs of a lane's two rows, divided by their sums (multiply_and_sum), to pairs.
// mark(r, bound, finite, piece, step) turns a row's piece into that of one key, if a probability is
// above bound and the row is finite.
template <typename Mark>
__device__ __forceinline__ void
store_packed(const PackedTargets& targets, const float (&out)[kOutAndSums],
             const float (&offset)[2], const int (&pair)[2], Mark mark) {
  const float sum[2] = {out[kSum], out[kSum + 2]};
  const float inverse[2] = {reciprocal_approximate(sum[0]), reciprocal_approximate(sum[1])};
  const float lse[2] = {offset[0] + log2_approximate(sum[0]), offset[1] + log2_approximate(sum[1])};
  float largest[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most[4]; // four chains, because a single one would be the longest of the loop
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      most[i] = larger_magnitude(out[4 * i + 2 * r], out[4 * i + 2 * r + 1]);
      most[i] = larger_magnitude(most[i], out[16 + 4 * i + 2 * r]);
      most[i] = larger_magnitude(most[i], out[16 + 4 * i + 2 * r + 1]);
    }
    largest[r] =
        larger_magnitude(larger_magnitude(most[0], most[1]), larger_magnitude(most[2], most[3]));
    largest[r] = larger_magnitude(largest[r], __shfl_xor_sync(~0u, largest[r], 1));
    largest[r] = larger_magnitude(largest[r], __shfl_xor_sync(~0u, largest[r], 2));
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint32_t step = row_step(largest[r] * inverse[r]);
    PackedPiece piece = pack_piece([&](int i) { return out[i / 2 * 4 + 2 * r + i % 2]; },
                                   inverse[r] * reciprocal_approximate(__uint_as_float(step)));
    mark(r, __float_as_uint(sum[r] * kOneKeyShare), largest[r] <= FLT_MAX, piece, step);
    targets.store(r, pair[r], piece, lse[r], step);
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::selected_forward
