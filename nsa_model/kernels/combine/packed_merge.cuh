#pragma once
// The work of one thread of the merge of packed partial results. It is host code too: a test runs
// every thread, 32 at a time, with a `Warp` of its own.
//
// A thread owns a piece (16 values of a head's row) and visits the slots. So 24 threads read 384
// and 96 contiguous bytes of each slot, and several slots are in flight. The four threads of a row
// are neighbours. All lanes of a warp take the same path, whatever slots their rows have.
//
// A Warp provides these functions, which all 32 lanes call:
//   exchange(value, mask)   the value of lane ^ mask
//   of_four(value, i)       the value of the i-th of each four lanes
//   any(bool), all(bool)    whether any lane, or every lane, has true

#include <cmath>
#include <cstdint>

#include "nsa_model/kernels/block_lists/rounds.cuh"
#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/combine/round_row.cuh"
#include "nsa_model/kernels/common/packed_pieces.cuh"
#include "nsa_model/kernels/common/vector.cuh"

namespace nsa::kernels::packed {

inline constexpr int kMergeRows = 8;
inline constexpr int kRowThreads = kHeadsPerGroup * kRowPieces;
inline constexpr int kMergeThreads = kRowThreads * kMergeRows;
static_assert(kMergeThreads % 32 == 0 && kSlots == 4 * kRowPieces);
// Number of slots with partial results of a token that uses all slots.
template <bool kJoined> inline constexpr int kWritten = kJoined ? kJoinedSlots : kSlots;
template <bool kJoined> inline constexpr uint32_t kAllWritten = (1u << kWritten<kJoined>)-1;

struct Piece {
  int64_t pair_row; // row of PairRows
  int64_t row;      // (batch * sequence + token) * groups + group
  int64_t offset;   // offset of 16 neighbouring values in a tensor of rows x 6 x 64
  int token;
  int head; // index in the group
  int quad; // index among the row's four pieces
  bool valid;

  __device__ __forceinline__ Piece(const AttentionShape& shape, const ListRound& round, int block,
                                   int thread) {
    const int local = thread / kRowThreads;
    const int64_t rows = visited_rows(round, 0);
    const int64_t wanted = static_cast<int64_t>(block) * kMergeRows + local;
    valid = wanted < rows;
    const RoundRow at(shape, round, 0, valid ? wanted : rows - 1);
    row = at.row;
    pair_row = at.pair_row;
    token = at.token;
    head = thread % kRowThreads / kRowPieces;
    quad = thread % kRowPieces;
    offset = (row * kHeadsPerGroup + head) * kHeadDim + quad * kPieceValues;
  }
};

// The slots of a row that have a partial result, one bit each. Each thread of a row reads a quarter
// of them.
template <typename Warp, bool kJoined>
__device__ __forceinline__ uint32_t listed_slots(const int32_t* indices, const Piece& piece,
                                                 bool any) {
  uint32_t bits = 0;
  if (any) {
    const int4 four = reinterpret_cast<const int4*>(indices + piece.row * kSlots)[piece.quad];
    bits = static_cast<uint32_t>(four.x >= 0) | static_cast<uint32_t>(four.y >= 0) << 1 |
           static_cast<uint32_t>(four.z >= 0) << 2 | static_cast<uint32_t>(four.w >= 0) << 3;
  }
  bits <<= 4 * piece.quad;
  bits |= Warp::exchange(bits, 1);
  bits |= Warp::exchange(bits, 2);
  return kJoined ? bits & kAllWritten<kJoined> : bits;
}

// Adds the piece of every listed slot. weight(slot) is its weight times its step; all lanes call
// it.
template <typename Warp, bool kJoined, typename Weight>
__device__ __forceinline__ void add_slots(PieceSum& sum, const PackedOut* slots, uint32_t listed,
                                          const Piece& piece, Weight weight) {
  const auto load = [&](int slot) {
    return PackedPiece{slots[slot].words[piece.head][piece.quad],
                       slots[slot].last_words[piece.head][piece.quad]};
  };
  // Number of slots whose loads are in flight together.
  constexpr int kBatch = kWritten<kJoined> / 2;
  static_assert(kWritten<kJoined> % kBatch == 0);
  if (Warp::all(listed == kAllWritten<kJoined>)) {
#pragma unroll
    for (int first = 0; first < kWritten<kJoined>; first += kBatch) {
      PackedPiece pieces[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        pieces[i] = load(first + i);
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        sum.add(pieces[i], weight(first + i));
    }
  } else {
#pragma unroll
    for (int slot = 0; slot < kWritten<kJoined>; ++slot) {
      const float weighted_step = weight(slot);
      if ((listed >> slot & 1u) != 0) sum.add(load(slot), weighted_step);
    }
  }
}

// Selected branch of a piece: partial results weighted by 2^(lse - max). Whole warps call it.
template <typename Warp, bool kJoined> struct MergedPiece {
  PieceSum sum;
  float factor;
  float lse; // natural logarithm

  __device__ __forceinline__ MergedPiece(const MergeParams& params, const Piece& piece, bool any) {
    const PackedOut* slots = params.packed + piece.pair_row * kWritten<kJoined>;
    const uint32_t listed = listed_slots<Warp, kJoined>(params.indices, piece, any);
    // Each thread of a row computes the weights of four slots.
    float lses[4];
    uint8_t exponents[4];
    uint32_t of_keys = 0; // slots whose row is stored as the index of a key
    float peak = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool is_listed = (listed >> (4 * piece.quad + i) & 1u) != 0;
      const PackedOut& slot = slots[4 * piece.quad + i];
      lses[i] = is_listed ? slot.lse[piece.head] : -INFINITY;
      exponents[i] = is_listed ? slot.exponents[piece.head] : 0;
      of_keys |= static_cast<uint32_t>(is_listed && exponents[i] == 0) << (4 * piece.quad + i);
      peak = fmaxf(peak, lses[i]);
    }
    peak = fmaxf(peak, Warp::exchange(peak, 1));
    peak = fmaxf(peak, Warp::exchange(peak, 2));
    float weights[4];
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float weight = lses[i] == -INFINITY ? 0.0f : exp2f(lses[i] - peak);
      total += weight;
      weights[i] = weight * step_of(lses[i], exponents[i]);
    }
    total += Warp::exchange(total, 1);
    total += Warp::exchange(total, 2);
    add_slots<Warp, kJoined>(sum, slots, listed, piece,
                             [&](int slot) { return Warp::of_four(weights[slot % 4], slot / 4); });
    if (Warp::any(of_keys != 0)) {
      of_keys |= Warp::exchange(of_keys, 1);
      of_keys |= Warp::exchange(of_keys, 2);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        weights[i] = lses[i] == -INFINITY ? 0.0f : exp2f(lses[i] - peak);
      add_keys(params, piece, slots, of_keys, weights);
    }
    factor = total > 0.0f ? 1.0f / total : 0.0f;
    lse = total > 0.0f ? (peak + log2f(total)) * 0.6931471805599453f : -INFINITY;
  }

private:
  // Adds the slots `of_keys`: the values of their keys times the slots' weights. Each thread has
  // four weights.
  __device__ __forceinline__ void add_keys(const MergeParams& params, const Piece& piece,
                                           const PackedOut* slots, uint32_t of_keys,
                                           const float (&weights)[4]) {
#pragma unroll 1
    for (int quarter = 0; quarter < 4; ++quarter) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int slot = 4 * quarter + i;
        const float weight = Warp::of_four(weights[i], quarter);
        if ((of_keys >> slot & 1u) == 0 || weight == 0.0f) continue;
        const int key = static_cast<int>(slots[slot].last_words[piece.head][piece.quad]);
        // In the first slot of joined blocks, the index covers the keys of all of them.
        const int block = kJoined && key >= kBlock
                              ? JoinedBlocks::block_of(piece.token, key / kBlock)
                              : params.indices[piece.row * kSlots + slot];
        const int token = block * kBlock + key % kBlock;
        const int64_t row = piece.row + int64_t{token - piece.token} * params.shape.groups;
        const auto* pairs =
            reinterpret_cast<const uint32_t*>(params.v + row * kHeadDim + 2 * piece.quad);
#pragma unroll
        for (int j = 0; j < kPieceValues / 2; ++j) {
          const uint32_t pair = pairs[4 * j];
          sum.add_value(2 * j, __builtin_bit_cast(float, pair << 16), weight);
          sum.add_value(2 * j + 1, __builtin_bit_cast(float, pair & 0xFFFF0000u), weight);
        }
      }
    }
  }
};

// Exchanges values between the four threads of a row. Before, a thread has dimensions 8j + 2 quad
// and 8j + 2 quad + 1 for j = 0 .. 7. Afterwards it has 16 quad to 16 quad + 15.
template <typename Warp>
__device__ __forceinline__ void to_neighbours(float (&values)[kPieceValues], int quad) {
  // values[4k ..] go to thread k: a 4 x 4 transposition that handles one bit of k and quad at a
  // time.
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (quad & bit) != 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if ((k & bit) != 0) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& low = values[4 * k + i];
        float& high = values[4 * (k | bit) + i];
        const float other = Warp::exchange(upper ? low : high, bit);
        (upper ? low : high) = other;
      }
    }
  }
  // values[4k ..] came from thread k and are two dimensions 2k of each half.
  float sorted[kPieceValues];
#pragma unroll
  for (int i = 0; i < kPieceValues; ++i)
    sorted[i / 4 * 2 + i % 4 / 2 * (kPieceValues / 2) + i % 2] = values[i];
#pragma unroll
  for (int i = 0; i < kPieceValues; ++i)
    values[i] = sorted[i];
}

__device__ __forceinline__ void accumulate(Eight (&sum)[2], const __nv_bfloat16* source,
                                           float factor) {
  const uint4 vectors[2] = {load_vector(source), load_vector(source + kVectorValues)};
  accumulate(sum[0], vectors[0], factor);
  accumulate(sum[1], vectors[1], factor);
}
__device__ __forceinline__ void store(__nv_bfloat16* target, const Eight (&values)[2]) {
  store(target, values[0]);
  store(target + kVectorValues, values[1]);
}

// The work of thread `thread` of block `block`. kJoined: slots are numbered as for JoinedBlocks.
template <typename Warp, bool kJoined>
__device__ __forceinline__ void merge_pieces(const MergeParams& params, int block, int thread) {
  const Piece piece(params.shape, params.round, block, thread);
  const bool merges = piece.valid && piece.token >= params.first_token;
  Eight selected[2] = {};
  float lse = 0.0f;
  if (Warp::any(merges)) {
    const MergedPiece<Warp, kJoined> merged(params, piece, merges);
    const float excess = merged.sum.excess();
    float values[kPieceValues];
#pragma unroll
    for (int i = 0; i < kPieceValues; ++i)
      values[i] = merged.sum.value(i, excess, merged.factor);
    to_neighbours<Warp>(values, piece.quad);
#pragma unroll
    for (int i = 0; i < kPieceValues; ++i)
      selected[i / kVectorValues].values[i % kVectorValues] = values[i];
    lse = merged.lse;
  }
  if (!piece.valid) return;
  const int64_t offset = piece.offset;
  if (!merges) {
    if (params.out == nullptr) return;
    selected[0] = selected[1] = {};
    accumulate(selected, params.out_slc + offset, 1.0f);
  }
  const int64_t head_row = piece.row * kHeadsPerGroup + piece.head;
  // Stores come last, because the compiler may not move a load before a store.
  Eight sum[2] = {};
  if (params.out != nullptr) {
    const float* gates = params.gates + head_row * 3;
#pragma unroll
    for (int i = 0; i < kPieceValues; ++i)
      sum[i / kVectorValues].values[i % kVectorValues] =
          gates[1] * selected[i / kVectorValues].values[i % kVectorValues];
    if (params.out_cmp != nullptr) accumulate(sum, params.out_cmp + offset, gates[0]);
    if (params.out_win != nullptr) accumulate(sum, params.out_win + offset, gates[2]);
  }
  if (merges) {
    store(params.out_slc + offset, selected);
    if (piece.quad == 0) params.lse_slc[head_row] = lse;
  }
  if (params.out != nullptr) store(params.out + offset, sum);
}

} // namespace nsa::kernels::packed
