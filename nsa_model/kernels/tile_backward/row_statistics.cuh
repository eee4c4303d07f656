#pragma once
// The statistics of a lane's two rows: lse and delta of every branch. The joint passes compute them
// for themselves and for the kernels of dK and dV. Device code only.

#include "nsa_model/kernels/combine/row_statistics.cuh"
#include "nsa_model/kernels/common/quad.cuh"
#include "nsa_model/kernels/tile_backward/passes.cuh"

namespace nsa::kernels::tile_backward {

#if NSA_HOPPER_CODE

__device__ __forceinline__ float dot(const uint4& a, const uint4& b, float sum) {
  const uint32_t left[4] = {a.x, a.y, a.z, a.w};
  const uint32_t right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(__uint_as_float(left[i] << 16), __uint_as_float(right[i] << 16), sum);
    sum =
        fmaf(__uint_as_float(left[i] & 0xFFFF0000u), __uint_as_float(right[i] & 0xFFFF0000u), sum);
  }
  return sum;
}

// Computes the statistics of a thread's two rows as backward_prepare_kernel does. Each thread of a
// quad reads a quarter of a row, and sums and writes one branch. The loads of the outputs start at
// once; dO is read later from the tile.
template <typename Heads> class RowsOfQuad {
  using Tile = TileOf<Heads::kDim>;
  static constexpr int kVectors = 2 * kPanels<Heads::kDim>; // vectors of a row that a thread reads

public:
  // The rows are tile_row and tile_row + 8 of the tile.
  __device__ __forceinline__ RowsOfQuad(const BackwardPrepareParams& params, const Heads& heads,
                                        const QueryTile& tile, int tile_row)
      : params_(params), heads_(heads), quad_(static_cast<int>(threadIdx.x) % 4) {
    const AttentionShape& shape = params.shape;
    const int branch = min(quad_, 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = tile_row + kRowsApart * r;
      token_[r] = tile.token + heads.token(row);
      const int inside = min(token_[r], shape.sequence - 1);
      valid_[r] = token_[r] < shape.sequence && !is_padding<Tile>(heads, row);
      head_[r] = heads.head(row);
      group_row_[r] =
          (static_cast<int64_t>(tile.batch) * shape.sequence + inside) * shape.groups + tile.group;
      const int64_t head_row = group_row_[r] * heads.count() + head_[r];
#pragma unroll
      for (int b = 0; b < 3; ++b) {
        const __nv_bfloat16* out = params.branch_out[b];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          outs_[b][r][i] =
              out == nullptr ? uint4{} : *chunk(out + head_row * Heads::kDim, quad_ + 4 * i);
        }
      }
      lse_[r] = params.statistics[branch] == nullptr ? 0.0f : params.branch_lse[branch][head_row];
      gate_[r] = params.gates == nullptr ? 1.0f : params.gates[head_row * 3 + branch];
    }
  }
  // Returns lse and delta of the pass's branches and writes all statistics to memory. `d_out` is
  // the first of the warpgroup's 64 rows in shared memory, and `row` is the first of the two rows.
  // Whole warps call it.
  template <int kParts>
  __device__ __forceinline__ void make(const uint8_t* d_out, int row, float (&lse)[kParts][2],
                                       float (&delta)[kParts][2]) {
    const int floats = heads_.statistics();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      uint4 vectors[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        vectors[i] = *chunk(d_out + i / 2 * Tile::kRows * kRowBytes, row + kRowsApart * r,
                            quad_ + i % 2 * 4);
      float deltas[3];
#pragma unroll
      for (int b = 0; b < 3; ++b) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kVectors; ++i)
          sum = dot(outs_[b][r][i], vectors[i], sum);
        deltas[b] = sum_of_quad(sum);
      }
      const float gated = gated_lse(lse_[r], gate_[r]);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        lse[part][r] = __shfl_sync(~0u, gated, branch_of_part(part), 4);
        delta[part][r] = deltas[branch_of_part(part)];
      }
      if (!valid_[r]) continue;
      if (quad_ < 3) {
        const float own = quad_ == 0 ? deltas[0] : quad_ == 1 ? deltas[1] : deltas[2];
        if (params_.d_gates != nullptr)
          params_.d_gates[(group_row_[r] * heads_.count() + head_[r]) * 3 + quad_] = own;
        float* target = params_.statistics[quad_];
        if (target != nullptr) {
          target += group_row_[r] * 2 * floats + head_[r];
          target[0] = gated;
          target[floats] = own;
        }
      }
      if constexpr (Heads::kMasks) {
        if (quad_ == 3 && head_[r] == 0 && params_.indices != nullptr &&
            params_.statistics[1] != nullptr && token_[r] < kMostMaskedTokens) {
          params_.statistics[1][group_row_[r] * 2 * floats + kBlockBitsStatistic] =
              __uint_as_float(block_bits(params_.indices + group_row_[r] * kSlots));
        }
      }
    }
  }

private:
  static __device__ __forceinline__ const uint4* chunk(const __nv_bfloat16* row, int index) {
    return reinterpret_cast<const uint4*>(row) + index;
  }
  static __device__ __forceinline__ const uint4* chunk(const uint8_t* tile, int row, int index) {
    return reinterpret_cast<const uint4*>(tile + swizzled(row, index));
  }

  const BackwardPrepareParams& params_;
  const Heads& heads_;
  int quad_;
  bool valid_[2];
  int token_[2];
  int head_[2];
  int64_t group_row_[2];
  uint4 outs_[3][2][kVectors]; // branch, row
  float lse_[2];               // of the thread's branch
  float gate_[2];
};

// Writes the row of statistics to which padding refers.
template <typename Heads>
__device__ __forceinline__ void make_null_row(const BackwardPrepareParams& params,
                                              const Heads& heads) {
  const int floats = heads.statistics();
  const int index = static_cast<int>(threadIdx.x);
  const AttentionShape& shape = params.shape;
  const int64_t row = static_cast<int64_t>(shape.batch) * shape.sequence * shape.groups;
  if (blockIdx.x != 0 || index >= 2 * floats) return;
  for (float* statistics : params.statistics) {
    if (statistics != nullptr)
      statistics[row * 2 * floats + index] = index < floats ? INFINITY : 0.0f;
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::tile_backward
