#include "nsa_model/kernels/selected_forward/selected_forward.h"

#include "nsa_model/kernels/block_lists/claimed_units.cuh"
#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/packed_pieces.cuh"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/common/wgmma.cuh"

// One CTA an SM, which claims unit after unit (claimed_units.cuh). Four producer warps gather 32
// tokens x 6 heads = 192 query rows a stage (one box of 768 bytes a token); three consumer
// warpgroups take 64 rows each:
//   S = Q K^T      m64n64k64, Q and K from shared memory
//   P = softmax    over the block's 64 keys, a row lies in the four lanes of a quad
//   O = P V        m64n64k64, P from registers, V from shared memory with keys along K
// The next chunk's S is issued behind this chunk's P V and runs under the stores of O. In BF16 O
// leaves through a buffer of the warp's own, so that global stores are whole rows and no wider
// barrier is needed. Packed (common/packed_slots.h) it leaves the registers that it lies in: the
// four lanes of a row hold its four pieces. What is decided there is decided a row, by its own
// scores.

namespace nsa::kernels {
namespace {

constexpr int kConsumers = 3;
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kChunkRows = 192; // 32 tokens x 6 heads
constexpr int kBlockStages = 2;
[[maybe_unused]] constexpr int kProducerWarps = 4;
constexpr int kChunkBytes = kChunkRows * kRowBytes;
static_assert(kChunkRows == 64 * kConsumers,
              "each consumer warpgroup owns one m64 tile of the chunk");

// Tokens of a chunk: as many as fit, and at most one a producer thread.
template <typename Heads> __host__ __device__ constexpr int chunk_tokens(const Heads& heads) {
  const int fit = heads.tokens(kChunkRows);
  return fit < 32 * kProducerWarps ? fit : 32 * kProducerWarps;
}

template <typename Heads, bool kPacked> struct Shared {
  // A sixth stage lies in the place of the results' buffer.
  static constexpr int kStages = kPacked ? 6 : 5;
  // With padding rows there are entries for "tokens" behind the last, which say that nothing is
  // stored.
  static constexpr int kTokens = Heads::kPads ? kChunkRows : kChunkRows / kHeadsPerGroup;
  alignas(1024) uint8_t queries[kStages][kChunkBytes];
  ClaimedUnits<kBlockStages> units;
  alignas(1024) uint8_t results[kPacked ? 1 : kConsumers][kPacked ? 1 : 64 * kRowBytes];
  int32_t pairs[kStages][kTokens]; // row of PairRows * 16 + slot; -1: padding
  int32_t tokens[kStages][kTokens];
  alignas(8) uint64_t queries_full[kStages];
  uint64_t queries_empty[kStages];
};
template <typename Heads, bool kPacked>
constexpr int kSharedBytes = sizeof(Shared<Heads, kPacked>) + 1024;
static_assert(kSharedBytes<SixHeads, false> <= kMostSharedBytes &&
              kSharedBytes<SixHeads, true> <= kMostSharedBytes &&
              kSharedBytes<AnyHeads, false> <= kMostSharedBytes);

#if NSA_HOPPER_CODE

template <typename Heads, bool kPacked>
__device__ void produce(const SelectedForwardParams& params, const Heads& heads,
                        const CUtensorMap& q_map, const CUtensorMap& k_map,
                        const CUtensorMap& v_map, Shared<Heads, kPacked>& shared,
                        const UnitRange& units, int blocks) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x % 128 / 32;
  const int tokens = chunk_tokens(heads);
  const int warp_tokens = (tokens + kProducerWarps - 1) / kProducerWarps;
  const int local = warp * warp_tokens + lane % warp_tokens;
  const bool brings = lane < warp_tokens && local < tokens;
  const int warp_bytes =
      max(0, min(warp_tokens, tokens - warp * warp_tokens)) * heads.count() * kRowBytes;
  const AttentionShape& shape = params.shape;
  Ring<Shared<Heads, kPacked>::kStages> ring;
  UnitClaims<kBlockStages> claims(shared.units, units, params.items, params.claims,
                                  warp == 0 && lane == 0);
  for (;;) {
    const WorkItem item = claims.next(k_map, v_map, blocks, shape.groups);
    if (item.segment == kNoSegment) break;
    const UnitPlace at(item.segment, blocks, shape.groups);
    const PairRows pair_rows(shape, params.round, at.lane);
    int next = params.entries[min(item.begin + local, item.end - 1)];
    for (int begin = item.begin; begin < item.end; begin += tokens) {
      const int entry = next; // past the end: the last token again, computed and not stored
      const int token = entry / kSlots;
      next = params.entries[min(begin + tokens + local, item.end - 1)];
      // The answer comes while the last chunk waits for its stage.
      if (begin + tokens >= item.end) claims.claim();
      const uint32_t full = shared_address(&shared.queries_full[ring.stage]);
      barrier_wait(shared_address(&shared.queries_empty[ring.stage]), ring.phase ^ 1u);
      if (brings) {
        shared.pairs[ring.stage][local] =
            begin + local < item.end ? pair_rows.row(token) * kSlots + entry % kSlots : -1;
        shared.tokens[ring.stage][local] = token;
      }
      warp_expect(full, warp_bytes);
      __syncwarp();
      if (brings) {
        load_box(shared_address(shared.queries[ring.stage]) + local * heads.count() * kRowBytes,
                 &q_map, 0, at.group * heads.count(), token, at.batch, full);
      }
      ring.advance();
    }
  }
}

// The key that has nearly all of the probability of row r of a lane's two, by all four lanes of the
// row; -1 when none has half of it.
__device__ __forceinline__ int only_key(const uint32_t (&probabilities)[16], int r, int quad) {
  constexpr uint32_t kHalf = 0x3F00; // in BF16
  int key = -1;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t pair = probabilities[2 * j + r];
    if ((pair & 0xFFFFu) > kHalf) key = 8 * j + 2 * quad;
    if (pair >> 16 > kHalf) key = 8 * j + 2 * quad + 1;
  }
  key = max(key, __shfl_xor_sync(~0u, key, 1));
  return max(key, __shfl_xor_sync(~0u, key, 2));
}

// A lane's piece of a row, value(i) times inverse, by all four lanes of the row. `key`: of a row of
// one key; else -1.
template <typename Value>
__device__ __forceinline__ void store_packed(PackedOut* slot, bool listed, int head, int quad,
                                             Value value, float inverse, float lse, int key) {
  float largest = larger_magnitude(value(0), value(1));
#pragma unroll
  for (int i = 2; i < kPieceValues; ++i)
    largest = larger_magnitude(largest, value(i));
  largest = larger_magnitude(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = larger_magnitude(largest, __shfl_xor_sync(~0u, largest, 2));
  uint32_t step = row_step(largest * inverse);
  PackedPiece piece = pack_piece(value, inverse * reciprocal_approximate(__uint_as_float(step)));
  if (key >= 0 && largest <= FLT_MAX) keep_key(piece, step, key);
  if (!listed) return;
  __stcs(&slot->words[head][quad], piece.words);
  __stcs(&slot->last_words[head][quad], piece.last_word);
  if (quad == 0) slot->lse[head] = join_fraction(lse, step);
  const int place = head + quad * kHeadsPerGroup; // 6 and 7 are of no head
  if (place < kHeadsPerGroup + 2) slot->exponents[place] = static_cast<uint8_t>(step >> 23);
}

template <typename Heads, bool kPacked>
__device__ void consume(const SelectedForwardParams& params, const Heads& heads,
                        Shared<Heads, kPacked>& shared, int blocks) {
  const int chunk = chunk_tokens(heads);
  const int warpgroup = uniform(threadIdx.x / 128);
  const int thread = threadIdx.x % 128;
  const int lane = threadIdx.x % 32;
  const int row = thread / 32 * 16 + lane / 4; // and row + 8, within the warpgroup's tile
  const int quad = lane % 4;
  const int tile_row = warpgroup * 64 + row;
  const int stored_row =
      warpgroup * 64 + thread / 32 * 16 + lane / 8; // and + 4, 8, 12: rows this thread stores
  const float scale_log2 = params.scale * kLog2e;
  uint8_t* results = shared.results[warpgroup];
  const uint32_t results_address = shared_address(results);
  Ring<Shared<Heads, kPacked>::kStages> ring;
  Ring<kBlockStages> block_ring;
  for (;;) {
    const int block_stage = block_ring.stage;
    barrier_wait(shared_address(&shared.units.full[block_stage]), block_ring.phase);
    const WorkItem loaded = shared.units.items[block_stage];
    const WorkItem item = {uniform(loaded.segment), uniform(loaded.begin), uniform(loaded.end), 0};
    if (item.segment == kNoSegment) break;
    const UnitPlace at(item.segment, blocks, params.shape.groups);
    const int key_base = at.block * kBlock;
    const uint32_t k_tile = shared_address(shared.units.keys[block_stage][0]);
    const uint32_t v_tile = shared_address(shared.units.keys[block_stage][1]);
    float scores[32];
    const auto issue_scores = [&] {
      barrier_wait(shared_address(&shared.queries_full[ring.stage]), ring.phase);
      wgmma_fence();
      multiply_shared<64, 4, Major::kK, Major::kK, false>(
          scores, shared_address(shared.queries[ring.stage]) + warpgroup * 64 * kRowBytes, k_tile);
    };
    issue_scores();
    wgmma_commit();
    for (int begin = item.begin; begin < item.end; begin += chunk) {
      wgmma_wait<0>();
      pin(scores);
      // Everything that is read from the stage is read here; then it is given back.
      const int32_t* pairs = shared.pairs[ring.stage];
      const int32_t* tokens = shared.tokens[ring.stage];
      const int pair[2] = {pairs[heads.token(tile_row)], pairs[heads.token(tile_row + 8)]};
      [[maybe_unused]] int stored_pair[4];
      if constexpr (!kPacked) {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          stored_pair[part] = pairs[heads.token(stored_row + 4 * part)];
        }
      }
      if (tokens[0] <
          key_base + kBlock) { // ascending: a block's own tokens stand first in its list
        const int last0 = tokens[heads.token(tile_row)] - key_base;
        const int last1 = tokens[heads.token(tile_row + 8)] - key_base;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int key = 8 * j + 2 * quad;
          if (key > last0) scores[4 * j] = -INFINITY;
          if (key + 1 > last0) scores[4 * j + 1] = -INFINITY;
          if (key > last1) scores[4 * j + 2] = -INFINITY;
          if (key + 1 > last1) scores[4 * j + 3] = -INFINITY;
        }
      }
      warp_arrive(shared_address(&shared.queries_empty[ring.stage]));
      ring.advance();

      float offset[2];
      float sum[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float peak = fmaxf(scores[2 * r], scores[2 * r + 1]);
#pragma unroll
        for (int j = 1; j < 8; ++j) {
          peak = fmaxf(peak, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
        }
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
        offset[r] = peak * scale_log2;
        sum[r] = 0.0f;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float& score = scores[4 * j + 2 * r + c];
            score = exp2_approximate(fmaf(score, scale_log2, -offset[r]));
            sum[r] += score;
          }
        }
      }
      uint32_t probabilities[16];
      to_operand<64>(scores, probabilities);
      float out[32];
      wgmma_fence();
      multiply_registers<64, 4, Major::kMN, false>(out, probabilities, v_tile);
      wgmma_commit();
      if (begin + chunk < item.end) issue_scores();
      wgmma_commit();
      float inverse[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(~0u, sum[r], 1);
        sum[r] += __shfl_xor_sync(~0u, sum[r], 2);
        inverse[r] = reciprocal_approximate(sum[r]);
        if (!kPacked && quad == 0 && pair[r] >= 0) {
          params.partial_lse[static_cast<int64_t>(pair[r]) * heads.statistics() +
                             heads.head(tile_row + 8 * r)] = offset[r] + log2_approximate(sum[r]);
        }
      }
      wgmma_wait<1>();
      pin(out);
      if constexpr (kPacked) {
        // The largest probability is about 1 before it is divided by the sum.
        const bool of_one_key[2] = {sum[0] < 1.0f + kBesideOneKey, sum[1] < 1.0f + kBesideOneKey};
        int key[2] = {-1, -1};
        if (__any_sync(~0u, of_one_key[0] || of_one_key[1])) { // seldom
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const int only = only_key(probabilities, r, quad);
            if (of_one_key[r]) key[r] = only;
          }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          store_packed(
              params.packed + pair[r], pair[r] >= 0, heads.head(tile_row + 8 * r), quad,
              [&](int i) { return out[i / 2 * 4 + 2 * r + i % 2]; }, inverse[r],
              offset[r] + log2_approximate(sum[r]), key[r]);
        }
      } else {
        const int matrix_row = thread / 32 * 16 + lane % 16;
        __syncwarp(); // the last chunk's results have been read
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          store_matrix(results_address + swizzled(matrix_row, j + lane / 16),
                       pack_bf16(out[4 * j] * inverse[0], out[4 * j + 1] * inverse[0]),
                       pack_bf16(out[4 * j + 2] * inverse[1], out[4 * j + 3] * inverse[1]),
                       pack_bf16(out[4 * j + 4] * inverse[0], out[4 * j + 5] * inverse[0]),
                       pack_bf16(out[4 * j + 6] * inverse[1], out[4 * j + 7] * inverse[1]));
        }
        __syncwarp();
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          const int local = thread / 32 * 16 + part * 4 + lane / 8;
          const uint4 value = *reinterpret_cast<const uint4*>(results + swizzled(local, lane % 8));
          if (stored_pair[part] >= 0) {
            const int64_t target = static_cast<int64_t>(stored_pair[part]) * heads.count() +
                                   heads.head(stored_row + 4 * part);
            __stcs(reinterpret_cast<uint4*>(params.partial_out + target * kHeadDim + lane % 8 * 8),
                   value);
          }
        }
      }
    }
    wgmma_wait<0>();
    warp_arrive(shared_address(&shared.units.empty[block_stage]));
    block_ring.advance();
  }
}

#endif // NSA_HOPPER_CODE

template <typename Heads, bool kPacked>
__global__ void __launch_bounds__(kThreads, 1)
    selected_forward_kernel(const __grid_constant__ SelectedForwardParams params,
                            const __grid_constant__ CUtensorMap q_map,
                            const __grid_constant__ CUtensorMap k_map,
                            const __grid_constant__ CUtensorMap v_map, int blocks) {
#if NSA_HOPPER_CODE
  wait_for_earlier_kernels();
  const Heads heads(params.shape.heads);
  extern __shared__ uint8_t raw[];
  auto& shared = *reinterpret_cast<Shared<Heads, kPacked>*>(align_tiles(raw));
  if constexpr (Heads::kPads) {
    const int behind = Shared<Heads, kPacked>::kTokens - chunk_tokens(heads);
    for (int i = threadIdx.x; i < Shared<Heads, kPacked>::kStages * behind; i += kThreads) {
      const int token = chunk_tokens(heads) + i % behind;
      shared.pairs[i / behind][token] = -1;
      shared.tokens[i / behind][token] = 0;
    }
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared<Heads, kPacked>::kStages; ++i) {
      barrier_init(shared_address(&shared.queries_full[i]), kProducerWarps * kWarpArrivals);
      barrier_init(shared_address(&shared.queries_empty[i]), 4 * kConsumers * kWarpArrivals);
    }
    init_units(shared.units, kProducerWarps, 4 * kConsumers);
    fence_barrier_init();
  }
  __syncthreads();
  const UnitRange units = units_of(params.segment_item_start, params.round, blocks);
  if (threadIdx.x / 128 == kConsumers) {
    registers_give_back<40>();
    produce(params, heads, q_map, k_map, v_map, shared, units, blocks);
  } else {
    registers_take<152>();
    consume(params, heads, shared, blocks);
  }
#endif
}

template <bool kPacked, typename Heads>
cudaError_t launch(const SelectedForwardParams& params, const Heads& heads, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  CUtensorMap q_map;
  CUtensorMap k_map;
  CUtensorMap v_map;
  cudaError_t error = require_hopper();
  if (error == cudaSuccess) {
    error = make_token_major_map(&q_map, params.q, shape.batch, shape.sequence,
                                 shape.groups * heads.count(), 1, heads.count());
  }
  if (error == cudaSuccess) {
    error = make_key_maps(&k_map, &v_map, params.k, params.v, shape, shape.sequence, kBlock);
  }
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(selected_forward_kernel<Heads, kPacked>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kSharedBytes<Heads, kPacked>);
  }
  if (error != cudaSuccess) return error;
  return launch_kernel(selected_forward_kernel<Heads, kPacked>, multiprocessor_count(), kThreads,
                       kSharedBytes<Heads, kPacked>, stream, params, q_map, k_map, v_map,
                       block_count(shape.sequence));
}

} // namespace

cudaError_t launch_selected_forward(const SelectedForwardParams& params, cudaStream_t stream) {
  if (params.packed != nullptr) {
    if (params.shape.heads != kHeadsPerGroup) return cudaErrorInvalidValue;
    const SixHeads heads(kHeadsPerGroup);
    return launch<true>(params, heads, stream);
  }
  return with_heads(params.shape, [&](auto heads) { return launch<false>(params, heads, stream); });
}

} // namespace nsa::kernels
