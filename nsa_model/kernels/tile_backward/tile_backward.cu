#include "nsa_model/kernels/tile_backward/tile_backward.h"

#include <algorithm>

#include "nsa_model/kernels/combine/row_statistics.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/query_tiles.cuh"
#include "nsa_model/kernels/common/tensor_map.h"

// Tiles, roles and schedule as in tile_forward.cu. Each consumer warpgroup owns 64 query rows:
//   S  = Q K^T    dP = dO V^T     m64n64k64, both from shared memory
//   dS = 2^(S - lse) (dP - delta)
//   dQ += dS K                    m64n64k64, dS from registers, K with keys along the contraction
// The next tile's S is issued before this tile's dQ and the next dP after it: both run under the
// next exponentials.
//
// A walk may have several branches' keys, the window's, then the compressed ones, then for tokens
// near the start those of the selected branch: a row's Q and dO serve all, the first tile of a
// branch follows the last of the one before like any other, and one sum leaves.

namespace nsa::kernels {
namespace {

constexpr int kThreads = 128 * (kTileConsumers + 1);
constexpr int kQueryStages = 2;
constexpr int kKeyStages = 6;
constexpr int kQueryBytes = kTileRows * kRowBytes;

struct Shared {
  alignas(1024) uint8_t queries[kQueryStages][2][kQueryBytes]; // Q, dO
  alignas(1024) uint8_t keys[kKeyStages][2][kTileKeyBytes];    // K, V
  alignas(8) uint64_t queries_full[kQueryStages];
  uint64_t queries_empty[kQueryStages];
  uint64_t keys_full[kKeyStages];
  uint64_t keys_empty[kKeyStages];
};
constexpr int kSharedBytes = sizeof(Shared) + 1024;

// Whose keys a tile walks, in this order.
template <KeyRange... kRanges> struct Walk {
  static constexpr int kParts = sizeof...(kRanges);
  static constexpr bool kStatistics = kParts > 1; // the kernel makes those of its rows
  static constexpr KeyRange range(int part) {
    constexpr KeyRange kAll[] = {kRanges...};
    return kAll[part];
  }
};
constexpr int kMostParts = 3;
// The joint walks: window, compressed, and as kRanges the selected branch.
template <KeyRange... kRanges>
using JointWalk = Walk<KeyRange::kWindow, KeyRange::kCompressed, kRanges...>;
[[maybe_unused]] constexpr int branch_of_part(int part) { // in BackwardPrepareParams
  return part == 0 ? 2 : part - 1;
}

struct Part {
  int window;
  int token_end;
  const float* statistics;
};
struct KernelParams {
  AttentionShape shape;
  Part parts[kMostParts]; // the first has the most tokens
  float scale;
  const int32_t* indices;        // for KeyRange::kBlocks
  BackwardPrepareParams prepare; // where the kernel makes the statistics
  __nv_bfloat16* d_q;
};
struct Maps {
  CUtensorMap q;
  CUtensorMap d_out;
  CUtensorMap k[kMostParts];
  CUtensorMap v[kMostParts];
};

#if NSA_HOPPER_CODE

// Calls visit(part) for each part of a walk, a number known to the compiler.
template <typename Walk, typename Visit> __device__ __forceinline__ void for_parts(Visit visit) {
  static_assert(Walk::kParts <= kMostParts);
  visit(std::integral_constant<int, 0>());
  if constexpr (Walk::kParts > 1) visit(std::integral_constant<int, 1>());
  if constexpr (Walk::kParts > 2) visit(std::integral_constant<int, 2>());
}

// What the functions of query tiles want to know of a part.
struct PartParams {
  const AttentionShape& shape;
  int window;
  int token_end;
  const int32_t* indices;

  __device__ __forceinline__ PartParams(const KernelParams& params, int part)
      : shape(params.shape), window(params.parts[part].window),
        token_end(params.parts[part].token_end), indices(params.indices) {}
};

// The tile's keys in a part: none of tokens behind its end.
template <typename Walk, int kPart, typename Heads>
__device__ __forceinline__ QueryTile part_of(const KernelParams& params, const Heads& heads,
                                             int index, int tiles) {
  const PartParams part(params, kPart);
  QueryTile tile = tile_of<Walk::range(kPart)>(part, heads, index, tiles);
  if (kPart > 0 && tile.token >= part.token_end) tile.keys = tile.key_tiles = 0;
  return tile;
}

template <typename Walk, typename Heads>
__device__ void produce(const KernelParams& params, const Heads& heads, const Maps& maps,
                        Shared& shared, int tiles) {
  Ring<kQueryStages> query_ring;
  Ring<kKeyStages> key_ring;
  const int count = tiles * params.shape.batch * params.shape.groups;
  const int query_bytes = heads.tokens(kTileRows) * heads.count() * kRowBytes;
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = tile_of_turn(turn);
    if (index >= count) break;
    const QueryTile tile = part_of<Walk, 0>(params, heads, index, tiles);
    const uint32_t query_full = shared_address(&shared.queries_full[query_ring.stage]);
    const int head = tile.group * heads.count();
    barrier_wait(shared_address(&shared.queries_empty[query_ring.stage]), query_ring.phase ^ 1u);
    barrier_expect(query_full, 2 * query_bytes);
    load_box(shared_address(shared.queries[query_ring.stage][0]), &maps.q, 0, head, tile.token,
             tile.batch, query_full);
    load_box(shared_address(shared.queries[query_ring.stage][1]), &maps.d_out, 0, head, tile.token,
             tile.batch, query_full);
    query_ring.advance();
    for_parts<Walk>([&](auto part) {
      load_keys(part_of<Walk, part.value>(params, heads, index, tiles), maps.k[part.value],
                maps.v[part.value], shared, key_ring);
    });
  }
}

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

// Makes the statistics of a thread's two rows, as backward_prepare_kernel does: each thread of a
// quad reads a quarter of a row, and joins and writes one branch. Outputs are asked for at once;
// dO is read from the tile, later.
template <typename Heads> class RowsOfQuad {
public:
  // tile_row and tile_row + 8 of the tile.
  __device__ __forceinline__ RowsOfQuad(const BackwardPrepareParams& params, const Heads& heads,
                                        const QueryTile& tile, int tile_row)
      : params_(params), heads_(heads), quad_(static_cast<int>(threadIdx.x) % 4) {
    const AttentionShape& shape = params.shape;
    const int branch = min(quad_, 2);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = tile_row + 8 * r;
      token_[r] = tile.token + heads.token(row);
      const int inside = min(token_[r], shape.sequence - 1);
      valid_[r] = token_[r] < shape.sequence && !is_padding(heads, row);
      head_[r] = heads.head(row);
      group_row_[r] =
          (static_cast<int64_t>(tile.batch) * shape.sequence + inside) * shape.groups + tile.group;
      const int64_t head_row = group_row_[r] * heads.count() + head_[r];
#pragma unroll
      for (int b = 0; b < 3; ++b) {
        const __nv_bfloat16* out = params.branch_out[b];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          outs_[b][r][half] =
              out == nullptr ? uint4{} : *chunk(out + head_row * kHeadDim, quad_ + 4 * half);
        }
      }
      lse_[r] = params.statistics[branch] == nullptr ? 0.0f : params.branch_lse[branch][head_row];
      gate_[r] = params.gates == nullptr ? 1.0f : params.gates[head_row * 3 + branch];
    }
  }
  // lse and delta of the walk's branches, and everything to memory. `d_out` is the first of the
  // warpgroup's 64 rows in shared memory, `row` the first of the two. Whole warps.
  template <int kParts>
  __device__ __forceinline__ void make(const uint8_t* d_out, int row, float (&lse)[kParts][2],
                                       float (&delta)[kParts][2]) {
    const int floats = heads_.statistics();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 halves[2] = {*chunk(d_out, row + 8 * r, quad_),
                               *chunk(d_out, row + 8 * r, quad_ + 4)};
      float deltas[3];
#pragma unroll
      for (int b = 0; b < 3; ++b) {
        float sum = dot(outs_[b][r][1], halves[1], dot(outs_[b][r][0], halves[0], 0.0f));
        sum += __shfl_xor_sync(~0u, sum, 1);
        deltas[b] = sum + __shfl_xor_sync(~0u, sum, 2);
      }
      const float joined = gated_lse(lse_[r], gate_[r]);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        lse[part][r] = __shfl_sync(~0u, joined, branch_of_part(part), 4);
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
          target[0] = joined;
          target[floats] = own;
        }
      }
      if constexpr (!Heads::kPads) {
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
  uint4 outs_[3][2][2]; // branch, row, half
  float lse_[2];        // of the quad's branch
  float gate_[2];
};

// The row of statistics that padding points at.
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

template <typename Walk, typename Heads>
__device__ void consume(const KernelParams& params, const Heads& heads, Shared& shared, int tiles) {
  const int warpgroup = uniform(threadIdx.x / 128);
  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const int quad = lane % 4;
  const int row = thread / 32 * 16 + lane / 4; // and row + 8, of the warpgroup's 64
  const float scale_log2 = params.scale * kLog2e;
  const AttentionShape& shape = params.shape;
  Ring<kQueryStages> query_ring;
  Ring<kKeyStages> key_ring;
  const int count = tiles * shape.batch * shape.groups;
  for (int turn = 0; turn * static_cast<int>(gridDim.x) < count; ++turn) {
    const int index = tile_of_turn(turn);
    if (index >= count) break;
    const QueryTile tile = part_of<Walk, 0>(params, heads, index, tiles);
    float lse[Walk::kParts][2];
    float delta[Walk::kParts][2];
    uint8_t* rows = shared.queries[query_ring.stage][0] + warpgroup * 64 * kRowBytes;
    const uint32_t q_tile = shared_address(rows);
    const uint32_t d_out_tile = q_tile + kQueryBytes;
    const auto wait_for_rows = [&] {
      barrier_wait(shared_address(&shared.queries_full[query_ring.stage]), query_ring.phase);
    };
    if constexpr (Walk::kStatistics) {
      RowsOfQuad<Heads> making(params.prepare, heads, tile, warpgroup * 64 + row);
      wait_for_rows();
      making.make(rows + kQueryBytes, row, lse, delta);
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int tile_row = warpgroup * 64 + row + 8 * r;
        const int token = tile.token + heads.token(tile_row);
        const int64_t group_row =
            (static_cast<int64_t>(tile.batch) * shape.sequence + min(token, shape.sequence - 1)) *
                shape.groups +
            tile.group;
        const int64_t place = group_row * 2 * heads.statistics() + heads.head(tile_row);
#pragma unroll
        for (int part = 0; part < Walk::kParts; ++part) {
          lse[part][r] = params.parts[part].statistics[place];
          delta[part][r] = params.parts[part].statistics[place + heads.statistics()];
        }
      }
      wait_for_rows();
    }
    float scores[32];
    float ds[32];
    float dq[32];
#pragma unroll
    for (int i = 0; i < 32; ++i)
      dq[i] = 0.0f;
    uint32_t ds_operand[16];
    int keys_before = 0; // of the step whose dS waits for its product: 0, 32 or 64

    const auto issue_dq = [&](auto keys, int stage) {
      multiply_registers<64, keys.value / 16, Major::kMN, true>(
          dq, part<keys.value / 4>(ds_operand), shared_address(shared.keys[stage][0]));
      wgmma_commit();
    };
    for_parts<Walk>([&](auto walk_part) {
      constexpr int kPart = walk_part.value;
      constexpr KeyRange kRange = Walk::range(kPart);
      const PartParams part_params(params, kPart);
      const QueryTile keys_of = part_of<Walk, kPart>(params, heads, index, tiles);
      if (keys_of.key_tiles == 0) return;
      int low[2];
      int high[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int token = tile.token + heads.token(warpgroup * 64 + row + 8 * r);
        low[r] = first_key<kRange>(token, part_params.window);
        high[r] = kPart > 0 && token >= part_params.token_end ? -1 : last_key<kRange>(token);
      }
      const int last_token = tile.token + heads.tokens(kTileRows) - 1;
      const int all_low = first_key<kRange>(last_token, part_params.window);
      const int all_high =
          kPart > 0 && last_token >= part_params.token_end ? -1 : last_key<kRange>(tile.token);
      const RowBlocks<kRange> blocks(part_params, tile.batch, tile.group,
                                     tile.token + heads.token(warpgroup * 64 + row),
                                     tile.token + heads.token(warpgroup * 64 + row + 8));
      // Steps of 64 keys; the last takes 32 when that is enough.
      const int rest = keys_of.keys % kTileKeys;
      const bool narrow = rest > 0 && rest <= kTileKeys / 2;

      const auto issue_scores = [&](auto keys) {
        multiply_shared<keys.value, 4, Major::kK, Major::kK, false>(
            part<keys.value / 2>(scores), q_tile, shared_address(shared.keys[key_ring.stage][0]));
        wgmma_commit();
      };
      const auto issue_gradients = [&](auto keys) { // of probabilities
        multiply_shared<keys.value, 4, Major::kK, Major::kK, false>(
            part<keys.value / 2>(ds), d_out_tile, shared_address(shared.keys[key_ring.stage][1]));
        wgmma_commit();
      };
      // The exponentials stand before the mask's branch: ptxas does not move the wait for the other
      // products before them.
      const auto to_probabilities = [&](auto keys, int j) {
#pragma unroll
        for (int i = 0; i < keys.value / 2; ++i) {
          scores[i] = exp2_approximate(fmaf(scores[i], scale_log2, -lse[kPart][i / 2 % 2]));
        }
#pragma unroll
        for (int part = 0; part < keys.value / kMaskKeys; ++part) { // most need none
          const int key_base = keys_of.first_key + j * kTileKeys + part * kMaskKeys;
          if (blocks.all_have(j) && key_base >= all_low && key_base + kMaskKeys - 1 <= all_high)
            continue;
          const int last[2] = {blocks.has(0, j) ? high[0] : -1, blocks.has(1, j) ? high[1] : -1};
#pragma unroll
          for (int i = 0; i < kMaskKeys / 2; ++i) {
            const int key = key_base + i / 4 * 8 + 2 * quad + i % 2;
            if (key < low[i / 2 % 2] || key > last[i / 2 % 2])
              scores[part * kMaskKeys / 2 + i] = 0.0f;
          }
        }
      };
      const auto to_score_gradients = [&](auto keys) { // rounded, as operand
#pragma unroll
        for (int i = 0; i < keys.value / 2; ++i)
          ds[i] = scores[i] * (ds[i] - delta[kPart][i / 2 % 2]);
        to_operand<keys.value>(part<keys.value / 2>(ds), part<keys.value / 4>(ds_operand));
      };
      const auto first_step = [&](auto keys) {
        barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
        wgmma_fence();
        issue_scores(keys);
        issue_gradients(keys);
        wgmma_wait<1>();
        pin(part<keys.value / 2>(scores));
        to_probabilities(keys, 0);
        wgmma_wait<0>();
        pin(part<keys.value / 2>(ds));
        to_score_gradients(keys);
      };
      const auto next_step = [&](auto before, auto keys, int j) {
        const int previous = key_ring.stage;
        key_ring.advance();
        barrier_wait(shared_address(&shared.keys_full[key_ring.stage]), key_ring.phase);
        wgmma_fence();
        issue_scores(keys);
        issue_dq(before, previous);
        issue_gradients(keys);
        wgmma_wait<2>();
        pin(part<keys.value / 2>(scores));
        to_probabilities(keys, j); // under the other two products
        wgmma_wait<0>();
        pin(dq);
        pin(part<keys.value / 2>(ds));
        warp_arrive(shared_address(&shared.keys_empty[previous]));
        to_score_gradients(keys);
      };
      constexpr Keys<kTileKeys> kWide;
      constexpr Keys<kTileKeys / 2> kNarrow;
      int j = 0;
      if constexpr (kPart == 0) {
        first_step(kWide);
        j = 1;
      } else if (keys_before == kNarrow.value) {
        next_step(kNarrow, kWide, 0);
        j = 1;
      }
      const int wide_steps = max(1, keys_of.key_tiles - (narrow ? 1 : 0));
      for (; j < wide_steps; ++j)
        next_step(kWide, kWide, j);
      keys_before = kWide.value;
      if (wide_steps < keys_of.key_tiles) {
        next_step(kWide, kNarrow, wide_steps);
        keys_before = kNarrow.value;
      }
    });
    const auto last_dq = [&](auto keys) {
      wgmma_fence();
      issue_dq(keys, key_ring.stage);
      wgmma_wait<0>();
      pin(dq);
      warp_arrive(shared_address(&shared.keys_empty[key_ring.stage]));
      key_ring.advance();
    };
    if (keys_before == kTileKeys) {
      last_dq(Keys<kTileKeys>());
    } else if (keys_before > 0) {
      last_dq(Keys<kTileKeys / 2>());
    }
    // Results leave through the query rows, which all four warps have finished reading here.
    named_barrier(1 + warpgroup, 128);
    const int matrix_row = thread / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 32; ++i)
      dq[i] *= params.scale;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      store_matrix(q_tile + swizzled(matrix_row, j + lane / 16),
                   pack_bf16(dq[4 * j], dq[4 * j + 1]), pack_bf16(dq[4 * j + 2], dq[4 * j + 3]),
                   pack_bf16(dq[4 * j + 4], dq[4 * j + 5]),
                   pack_bf16(dq[4 * j + 6], dq[4 * j + 7]));
    }
    __syncwarp(); // a warp reads back only the rows that it stored
    store_rows(rows, tile, PartParams(params, 0), heads, warpgroup, params.d_q);
    fence_async_proxy();
    warp_arrive(shared_address(&shared.queries_empty[query_ring.stage]));
    query_ring.advance();
  }
}

#endif // NSA_HOPPER_CODE

template <typename Walk, typename Heads>
__global__ void __launch_bounds__(kThreads, 1)
    tile_backward_kernel(const __grid_constant__ KernelParams params,
                         const __grid_constant__ Maps maps, int tiles) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(align_tiles(raw));
  const Heads heads(params.shape.heads);
  if constexpr (Walk::kStatistics) make_null_row(params.prepare, heads);
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  if (threadIdx.x / 128 == kTileConsumers) {
    registers_give_back<32>();
    if (threadIdx.x % 128 == 0) produce<Walk>(params, heads, maps, shared, tiles);
  } else {
    registers_take<160>();
    consume<Walk>(params, heads, shared, tiles);
  }
#endif
}

// K and V of each part, and how many rows they have.
struct PartKeys {
  const __nv_bfloat16* k;
  const __nv_bfloat16* v;
  int count;
};

template <typename Walk, typename Heads>
cudaError_t launch(const KernelParams& params, const BlockBackwardTensors& queries,
                   const PartKeys (&keys)[Walk::kParts], const Heads& heads, cudaStream_t stream,
                   cudaEvent_t launched = nullptr) {
  const AttentionShape& shape = params.shape;
  const int all_heads = shape.groups * heads.count();
  const int tile_tokens = heads.tokens(kTileRows);
  Maps maps = {};
  cudaError_t error = make_token_major_map(&maps.q, queries.q, shape.batch, shape.sequence,
                                           all_heads, tile_tokens, heads.count());
  if (error == cudaSuccess) {
    error = make_token_major_map(&maps.d_out, queries.d_out, shape.batch, shape.sequence, all_heads,
                                 tile_tokens, heads.count());
  }
  for (int part = 0; part < Walk::kParts && error == cudaSuccess; ++part) {
    // A sequence without compressed tokens loads none, but a descriptor cannot be empty: it names
    // q.
    const bool any = keys[part].count > 0;
    error = make_key_maps(&maps.k[part], &maps.v[part], any ? keys[part].k : queries.q,
                          any ? keys[part].v : queries.q, shape, std::max(keys[part].count, 1),
                          kTileKeys);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(tile_backward_kernel<Walk, Heads>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  }
  if (error != cudaSuccess) return error;
  const int tiles = (params.parts[0].token_end + tile_tokens - 1) / tile_tokens;
  const int grid = std::min(multiprocessor_count(), tiles * shape.batch * shape.groups);
  return launch_signalling(launched, tile_backward_kernel<Walk, Heads>, grid, kThreads,
                           kSharedBytes, stream, params, maps, tiles);
}

} // namespace

cudaError_t launch_tile_backward(const TileBackwardParams& params, cudaStream_t stream) {
  const cudaError_t error = require_hopper();
  if (error != cudaSuccess) return error;
  if (params.token_end < 1 || params.token_end > params.shape.sequence)
    return cudaErrorInvalidValue;
  if (params.range == KeyRange::kBlocks &&
      (params.indices == nullptr || params.token_end > kMostMaskedTokens))
    return cudaErrorInvalidValue;
  const BlockBackwardTensors& tensors = params.tensors;
  const KernelParams kernel = {.shape = params.shape,
                               .parts = {{params.window, params.token_end, tensors.statistics}},
                               .scale = params.scale,
                               .indices = params.indices,
                               .d_q = params.d_q};
  const bool compressed = params.range == KeyRange::kCompressed;
  const PartKeys keys[] = {
      {tensors.k, tensors.v,
       compressed ? compressed_count(params.shape.sequence) : params.shape.sequence}};
  return with_heads(params.shape, [&](auto heads) {
    switch (params.range) {
    case KeyRange::kWindow:
      return launch<Walk<KeyRange::kWindow>>(kernel, tensors, keys, heads, stream, params.launched);
    case KeyRange::kCompressed:
      return launch<Walk<KeyRange::kCompressed>>(kernel, tensors, keys, heads, stream,
                                                 params.launched);
    case KeyRange::kBlocks:
      if constexpr (!decltype(heads)::kPads) {
        return launch<Walk<KeyRange::kBlocks>>(kernel, tensors, keys, heads, stream,
                                               params.launched);
      }
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t launch_joint_backward(const JointBackwardParams& params, cudaStream_t stream) {
  const cudaError_t error = require_hopper();
  if (error != cudaSuccess) return error;
  const AttentionShape& shape = params.shape;
  const int prefix = params.selected_tokens;
  const bool masked = params.indices != nullptr;
  if (prefix > shape.sequence || (masked && prefix > kMostMaskedTokens))
    return cudaErrorInvalidValue;
  KernelParams kernel = {.shape = shape,
                         .parts = {{kWindow, shape.sequence, params.window.statistics},
                                   {kWindow, shape.sequence, params.compressed.statistics},
                                   {2 * kMaxSequence, prefix, nullptr}},
                         .scale = params.scale,
                         .indices = params.indices,
                         .prepare = params.prepare,
                         .d_q = params.d_q};
  const PartKeys window = {params.window.k, params.window.v, shape.sequence};
  const PartKeys compressed = {params.compressed.k, params.compressed.v,
                               compressed_count(shape.sequence)};
  const PartKeys selected = {params.selected.k, params.selected.v, shape.sequence};
  const PartKeys two[] = {window, compressed};
  const PartKeys three[] = {window, compressed, selected};
  return with_heads(shape, [&](auto heads) {
    if (prefix == 0) return launch<JointWalk<>>(kernel, params.window, two, heads, stream);
    if (!masked) {
      return launch<JointWalk<KeyRange::kWindow>>(kernel, params.window, three, heads, stream);
    }
    if constexpr (!decltype(heads)::kPads) {
      return launch<JointWalk<KeyRange::kBlocks>>(kernel, params.window, three, heads, stream);
    }
    return cudaErrorInvalidValue;
  });
}

} // namespace nsa::kernels
