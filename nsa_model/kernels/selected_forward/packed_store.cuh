#pragma once
// Stores packed results: 10 bits a value with a common step for each row (common/packed_slots.h),
// directly from registers. Device code only.

#include <cfloat>
#include <cstddef>

#include "nsa_model/kernels/common/packed_pieces.cuh"
#include "nsa_model/kernels/selected_forward/probabilities.cuh"

namespace nsa::kernels::selected_forward {

#if NSA_HOPPER_CODE

// Address of a pair's record, as loading warps leave it for the rows of a token.
using Record = uint64_t;
inline constexpr Record kNoRecord = ~Record{0}; // stores nothing

// Targets of a lane's pieces of its two rows, as offsets in a record. Quad 0 stores the row's
// log-sum, and quads 1 and 2 store exponents, at the same offset. The limits are above the upper
// word of every record if the lane stores there, and else 0. All values are opaque to the compiler.
// Otherwise it would compute them again for every chunk, which took a tenth of the loop.
class PackedTargets {
public:
  __device__ __forceinline__ PackedTargets(const int (&head)[2], int quad)
      : lse_limit_(keep(quad == 0 ? kLimit : 0)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint32_t place = head[r] + (quad - 1) * kHeadsPerGroup; // 6 and 7 belong to no head
      const bool counts = quad > 0 && place < kHeadsPerGroup + 2;
      exponent_limit_[r] = keep(counts ? kLimit : 0);
      words_[r] = keep(offsetof(PackedOut, words) + (head[r] * kRowPieces + quad) * sizeof(uint4));
      last_words_[r] =
          keep(offsetof(PackedOut, last_words) + (head[r] * kRowPieces + quad) * sizeof(uint32_t));
      of_row_[r] = keep(counts ? offsetof(PackedOut, exponents) + place
                               : offsetof(PackedOut, lse) + head[r] * sizeof(float));
    }
  }
  // It is one asm statement, so that each store has a predicate and none has a branch.
  __device__ __forceinline__ void store(int r, Record record, const PackedPiece& piece, float lse,
                                        uint32_t step) const {
    asm volatile("{\n.reg .pred listed, first, counts;\n.reg .b32 low, high;\n"
                 ".reg .b64 offset<3>, target<3>;\nmov.b64 {low, high}, %0;\n"
                 "setp.ge.s32 listed, high, 0;\nsetp.lt.u32 first, high, %1;\n"
                 "setp.lt.u32 counts, high, %2;\n"
                 "cvt.u64.u32 offset0, %3;\ncvt.u64.u32 offset1, %4;\ncvt.u64.u32 offset2, %5;\n"
                 "add.u64 target0, %0, offset0;\nadd.u64 target1, %0, offset1;\n"
                 "add.u64 target2, %0, offset2;\n"
                 "@listed st.global.cs.v4.b32 [target0], {%6, %7, %8, %9};\n"
                 "@listed st.global.cs.b32 [target1], %10;\n"
                 "@first st.global.f32 [target2], %11;\n"
                 "@counts st.global.u8 [target2], %12;\n}\n" ::"l"(record),
                 "r"(lse_limit_), "r"(exponent_limit_[r]), "r"(words_[r]), "r"(last_words_[r]),
                 "r"(of_row_[r]), "r"(piece.words.x), "r"(piece.words.y), "r"(piece.words.z),
                 "r"(piece.words.w), "r"(piece.last_word), "f"(with_fraction(lse, step)),
                 "r"(step >> 23)
                 : "memory");
  }

private:
  static constexpr uint32_t kLimit = 0x80000000u;
  static __device__ __forceinline__ uint32_t keep(size_t value) {
    uint32_t kept = static_cast<uint32_t>(value);
    asm volatile("" : "+r"(kept));
    return kept;
  }
  uint32_t lse_limit_;
  uint32_t exponent_limit_[2];
  uint32_t words_[2];
  uint32_t last_words_[2];
  uint32_t of_row_[2];
};

// Stores the outputs of a lane's two rows, divided by their sums (multiply_and_sum), to records.
// mark(r, bound, finite, piece, step) turns a row's piece into that of one key, if a probability is
// above bound and the row is finite.
template <typename Mark>
__device__ __forceinline__ void
store_packed(const PackedTargets& targets, const float (&out)[kOutAndSums],
             const float (&offset)[2], const Record (&record)[2], Mark mark) {
  const float sum[2] = {out[kSum], out[kSum + 2]};
  const float inverse[2] = {reciprocal_approximate(sum[0]), reciprocal_approximate(sum[1])};
  const float lse[2] = {offset[0] + log2_approximate(sum[0]), offset[1] + log2_approximate(sum[1])};
  float largest[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // Magnitudes order like their bits, a NaN last.
    uint32_t most[kPieceValues / 2];
#pragma unroll
    for (int i = 0; i < kPieceValues / 2; ++i)
      most[i] = __float_as_uint(larger_magnitude(out[4 * i + 2 * r], out[4 * i + 2 * r + 1]));
    largest[r] = __uint_as_float(max(__vimax3_u32(__vimax3_u32(most[0], most[1], most[2]),
                                                  __vimax3_u32(most[3], most[4], most[5]), most[6]),
                                     most[7]));
    largest[r] = larger_magnitude(largest[r], __shfl_xor_sync(~0u, largest[r], 1));
    largest[r] = larger_magnitude(largest[r], __shfl_xor_sync(~0u, largest[r], 2));
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint32_t step = row_step(largest[r] * inverse[r]);
    PackedPiece piece = pack_piece([&](int i) { return out[i / 2 * 4 + 2 * r + i % 2]; },
                                   inverse[r] * reciprocal_approximate(__uint_as_float(step)));
    mark(r, __float_as_uint(sum[r] * kOneKeyShare), largest[r] <= FLT_MAX, piece, step);
    targets.store(r, record[r], piece, lse[r], step);
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::selected_forward
