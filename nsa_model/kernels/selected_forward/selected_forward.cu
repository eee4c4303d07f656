#include "nsa_model/kernels/selected_forward/selected_forward.h"

#include <type_traits>

#include "nsa_model/kernels/block_lists/claimed_units.cuh"
#include "nsa_model/kernels/block_lists/list_entries.cuh"
#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/packed_pieces.cuh"
#include "nsa_model/kernels/common/tensor_map.h"
#include "nsa_model/kernels/common/wgmma.cuh"

// One CTA an SM, which claims unit after unit (claimed_units.cuh). Four producer warps gather 32
// tokens x 6 heads = 192 query rows a stage (one box of 768 bytes a token); three consumer
// warpgroups take 64 rows each:
//   S = Q K^T      m64n64k64, Q and K from shared memory
//   P = 2^S        over the block's 64 keys, a row lies in the four lanes of a quad
//   O, sum = P V   m64n72k64, P from registers, V from shared memory with keys along K, and eight
//                  columns of ones behind it, which give each lane its rows' sums
// The next chunk's S is issued behind this chunk's P V and runs under the stores of O. In BF16 O
// leaves through a buffer of the warp's own, so that global stores are whole rows and no wider
// barrier is needed. Packed (common/packed_slots.h) it leaves the registers that it lies in: the
// four lanes of a row hold its four pieces. What is decided there is decided a row, by its own
// scores.

namespace nsa::kernels {
namespace {

constexpr int kConsumers = 3;
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr int kChunkRows = 192;                                       // 32 tokens x 6 heads
template <bool kPacked> constexpr int kBlockStages = kPacked ? 4 : 2; // more for joined units
[[maybe_unused]] constexpr int kProducerWarps = 4;
[[maybe_unused]] constexpr int kWarpTokens =
    kChunkRows / kHeadsPerGroup / kProducerWarps; // six heads
constexpr int kChunkBytes = kChunkRows * kRowBytes;
static_assert(kChunkRows == 64 * kConsumers,
              "each consumer warpgroup owns one m64 tile of the chunk");
static_assert(kJoinedTokens * kHeadsPerGroup == kChunkRows, "a joined unit is one chunk");

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
  ClaimedUnits<kBlockStages<kPacked>> units;
  alignas(1024) uint8_t results[kPacked ? 1 : kConsumers][kPacked ? 1 : 64 * kRowBytes];
  alignas(1024) uint32_t ones[16][kRowBytes / 4]; // two to a word
  int32_t pairs[kStages][kTokens]; // pair: row of PairRows * slots + slot; -1: padding
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

__device__ __forceinline__ JoinedBlocks joined_blocks(const SelectedForwardParams& params) {
  return {params.joined_first_token, params.shape.sequence};
}

template <typename Heads, bool kPacked>
__device__ void produce(const SelectedForwardParams& params, const Heads& heads,
                        const CUtensorMap& q_map, const CUtensorMap& k_map,
                        const CUtensorMap& v_map, Shared<Heads, kPacked>& shared,
                        const UnitRange& units, int blocks) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x % 128 / 32;
  const int tokens = chunk_tokens(heads);
  const int warp_tokens = (tokens + kProducerWarps - 1) / kProducerWarps;
  const int first = uniform(warp * warp_tokens);
  const int local = first + lane % warp_tokens;
  const bool brings = lane < warp_tokens && local < tokens;
  const int warp_bytes = max(0, min(warp_tokens, tokens - first)) * heads.count() * kRowBytes;
  const AttentionShape& shape = params.shape;
  Ring<Shared<Heads, kPacked>::kStages> ring;
  using Joined = std::conditional_t<kPacked, JoinedUnits, NoJoinedUnits>;
  Joined joined;
  if constexpr (kPacked) {
    joined = {joined_blocks(params), params.segment_start, params.round.cut,
              params.round.first_lane, blocks};
  }
  const int sections = params.round.cut.sections;
  const int slots = params.joined_first_token == 0 ? kSlots : kJoinedSlots;
  UnitClaims<kBlockStages<kPacked>, Joined> claims(shared.units, units, params.items, params.claims,
                                                   warp == 0 && lane == 0, joined);
  for (;;) {
    const WorkItem item = claims.next(k_map, v_map, blocks, sections, shape.groups);
    if (item.segment == kNoSegment) break;
    const UnitPlace at(item.segment, blocks, sections, shape.groups);
    const int group = uniform(at.group);
    const int batch = uniform(at.batch);
    const PairRows pair_rows(shape, params.round, at.lane);
    // A chunk's rows: of a token, whose partial result is that of a slot, if any.
    const auto bring = [&](int token, int slot, bool listed) {
      const EveryLane<Heads, kWarpTokens> its_token(token);
      const int stage = uniform(ring.stage);
      const uint32_t full = shared_address(&shared.queries_full[stage]);
      barrier_wait(shared_address(&shared.queries_empty[stage]), ring.phase ^ 1u);
      if (brings) {
        shared.pairs[stage][local] = listed ? pair_rows.row(token) * slots + slot : -1;
        shared.tokens[stage][local] = token;
      }
      warp_expect(full, warp_bytes);
      __syncwarp();
      const auto load = [&](int place, int from_token) {
        load_box(shared_address(shared.queries[stage]) + place * heads.count() * kRowBytes, &q_map,
                 0, group * heads.count(), from_token, batch, full);
      };
      if constexpr (Heads::kPads) {
        if (brings) load(local, token);
      } else if (elected()) {
#pragma unroll
        for (int j = 0; j < kWarpTokens; ++j)
          load(first + j, its_token.values[j]);
      }
      ring.advance();
    };
    if constexpr (kPacked) {
      if (item.index < 0) { // a part of a joined unit, whose rows come with the first
        if (item.index != kFirstPart) continue;
        claims.claim();
        bring(min(item.begin + local, item.end - 1), 0, item.begin + local < item.end);
        continue;
      }
    }
    ListEntries entries(params.entries, item.begin, item.end, first, tokens, warp_tokens);
    for (int begin = item.begin; begin < item.end; begin += tokens) {
      const int entry = entries.next(); // past the end: the last again, computed and not stored
      // The answer comes while the last chunk waits for its stage.
      if (begin + tokens >= item.end) claims.claim();
      bring(entry / kSlots, entry % kSlots, begin + local < item.end);
    }
  }
}

// Probabilities of a block before they are divided by their sum, 2^(score - offset): in BF16, as
// the operand of the product with V, of a lane's rows r = 0 and 1.
struct Probabilities {
  uint32_t operand[16]; // words 2j + r
  float offset[2];      // see needs_offset
  // Bits of a float that is at least the largest of a lane's 16 and less than BF16's next above it.
  uint32_t largest[2];
};

__device__ __forceinline__ uint32_t largest_of(const uint32_t (&operand)[16], int r) {
  // No sign: larger numbers are larger.
  const uint32_t first = __vimax3_u16x2(operand[r], operand[2 + r], operand[4 + r]);
  const uint32_t second = __vimax3_u16x2(operand[6 + r], operand[8 + r], operand[10 + r]);
  const uint32_t both = __vmaxu2(__vimax3_u16x2(operand[12 + r], operand[14 + r], first), second);
  return max(both, both << 16);
}

// A row whose largest probability is so far from 1 without an offset takes its largest score as
// one. The others are as exact without, and nothing waits for their maximum. Which a row is depends
// on its own scores alone.
constexpr uint32_t kLeast = (127 - 40) << 23;
constexpr uint32_t kMost = (127 + 40) << 23;
__device__ __forceinline__ bool needs_offset(uint32_t largest) {
  return largest - kLeast > kMost - kLeast;
}

// Of a row's four lanes, by all of them.
__device__ __forceinline__ uint32_t largest_of_row(uint32_t largest) {
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  return max(largest, __shfl_xor_sync(~0u, largest, 2));
}
__device__ __forceinline__ float peak_of_row(const float (&scores)[32], int r) {
  float peak = fmaxf(scores[2 * r], scores[2 * r + 1]);
#pragma unroll
  for (int j = 1; j < 8; ++j)
    peak = fmaxf(peak, fmaxf(scores[4 * j + 2 * r], scores[4 * j + 2 * r + 1]));
  peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
  return fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
}

// Gives rows that need it an offset. Seldom. By all four lanes of a row.
__device__ __forceinline__ void take_offsets(Probabilities& p, const float (&scores)[32],
                                             float scale_log2) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint32_t largest = largest_of_row(p.largest[r]);
    const float offset = peak_of_row(scores, r) * scale_log2;
    if (!needs_offset(largest)) continue;
    p.offset[r] = offset;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      p.operand[2 * j + r] =
          pack_bf16(exp2_approximate(fmaf(scores[4 * j + 2 * r], scale_log2, -offset)),
                    exp2_approximate(fmaf(scores[4 * j + 2 * r + 1], scale_log2, -offset)));
    }
    p.largest[r] = largest_of(p.operand, r);
  }
}

// From scores that are not scaled yet.
__device__ __forceinline__ void make_probabilities(Probabilities& p, const float (&scores)[32],
                                                   float scale_log2) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    p.operand[i] = pack_bf16(exp2_approximate(scores[2 * i] * scale_log2),
                             exp2_approximate(scores[2 * i + 1] * scale_log2));
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    p.offset[r] = 0.0f;
    p.largest[r] = largest_of(p.operand, r);
  }
  if (__any_sync(~0u, needs_offset(p.largest[0]) || needs_offset(p.largest[1])))
    take_offsets(p, scores, scale_log2);
}

// Of a later part of a joined unit, whose first ones `out` and `of_one` have come of. A row takes
// another offset when its probabilities have grown by more than 2^40; what it has had until then is
// multiplied.
__device__ __forceinline__ void make_later_probabilities(Probabilities& p,
                                                         const float (&scores)[32],
                                                         float scale_log2, float (&out)[36],
                                                         float (&of_one)[2]) {
  const auto make = [&](int r) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      p.operand[2 * j + r] =
          pack_bf16(exp2_approximate(fmaf(scores[4 * j + 2 * r], scale_log2, -p.offset[r])),
                    exp2_approximate(fmaf(scores[4 * j + 2 * r + 1], scale_log2, -p.offset[r])));
    }
    p.largest[r] = largest_of(p.operand, r);
  };
  make(0);
  make(1);
  if (!__any_sync(~0u, max(p.largest[0], p.largest[1]) > kMost)) return; // mostly
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool grown = largest_of_row(p.largest[r]) > kMost;
    const float offset = peak_of_row(scores, r) * scale_log2;
    const float factor = grown ? exp2_approximate(p.offset[r] - offset) : 1.0f;
#pragma unroll
    for (int j = 0; j < 9; ++j) {
      out[4 * j + 2 * r] *= factor;
      out[4 * j + 2 * r + 1] *= factor;
    }
    of_one[r] *= factor;
    p.offset[r] = grown ? offset : p.offset[r];
    make(r);
  }
}

// The key of row r of a lane's two whose probability is above `bound`, at least half of all: by all
// four lanes of the row; -1 when there is none.
__device__ __forceinline__ int only_key(const uint32_t (&probabilities)[16], int r, int quad,
                                        uint32_t bound) {
  int key = -1;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t pair = probabilities[2 * j + r];
    if (pair << 16 > bound) key = 8 * j + 2 * quad;
    if ((pair & 0xFFFF0000u) > bound) key = 8 * j + 2 * quad + 1;
  }
  key = max(key, __shfl_xor_sync(~0u, key, 1));
  return max(key, __shfl_xor_sync(~0u, key, 2));
}

// Where a lane's pieces of its two rows go: addresses in pair 0, and masks that make a pair's
// number negative where the lane has nothing to store. Opaque to the compiler, which else computes
// them again for every chunk: that was a tenth of the loop.
class PackedTargets {
public:
  __device__ __forceinline__ PackedTargets(PackedOut* packed, const int (&head)[2], int quad)
      : lse_mask_(keep(quad == 0 ? 0 : -1)) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int place = head[r] + quad * kHeadsPerGroup; // 6 and 7 are of no head
      exponent_mask_[r] = keep(place < kHeadsPerGroup + 2 ? 0 : -1);
      words_[r] = keep(&packed->words[head[r]][quad]);
      last_words_[r] = keep(&packed->last_words[head[r]][quad]);
      lse_[r] = keep(&packed->lse[head[r]]);
      exponents_[r] = keep(&packed->exponents[place < kHeadsPerGroup + 2 ? place : 0]);
    }
  }
  // pair < 0: none. One piece of asm, so that each store has its predicate and none a branch.
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
                 "f"(join_fraction(lse, step)), "l"(exponents_[r] + offset), "r"(step >> 23)
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

// Outputs of a lane's two rows with their sums (multiply_and_sum), divided by these, to pairs.
// mark(r, bound, finite, piece, step) makes a row's piece that of one key where a probability is
// above bound and the row is finite.
template <typename Mark>
__device__ __forceinline__ void store_packed(const PackedTargets& targets, const float (&out)[36],
                                             const float (&offset)[2], const int (&pair)[2],
                                             Mark mark) {
  const float sum[2] = {out[32], out[34]};
  const float inverse[2] = {reciprocal_approximate(sum[0]), reciprocal_approximate(sum[1])};
  const float lse[2] = {offset[0] + log2_approximate(sum[0]), offset[1] + log2_approximate(sum[1])};
  float largest[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float most[4]; // four chains: one would be the longest of the loop
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

// A joined unit: 32 tokens from `begin` on, and three blocks one after another, of which the last
// is their own. One output for all.
template <typename Heads>
__device__ __forceinline__ void
consume_joined(Shared<Heads, true>& shared, Ring<Shared<Heads, true>::kStages>& ring,
               Ring<kBlockStages<true>>& block_ring, const PackedTargets& targets,
               const Heads& heads, int begin, float scale_log2) {
  const int warpgroup = uniform(threadIdx.x / 128);
  const int lane = threadIdx.x % 32;
  const int quad = lane % 4;
  const int tile_row = warpgroup * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
  const int own_key = uniform(begin / kBlock * kBlock);
  const uint32_t ones = shared_address(shared.ones);
  const uint32_t queries = shared_address(shared.queries[ring.stage]) + warpgroup * 64 * kRowBytes;
  float scores[32];
  const auto issue_scores = [&] {
    wgmma_fence();
    multiply_shared<64, 4, Major::kK, Major::kK, false>(
        scores, queries, shared_address(shared.units.keys[block_ring.stage][0]));
    wgmma_commit();
  };
  float out[36];
  Probabilities p;
  p.offset[0] = p.offset[1] = 0.0f;
  // A key that has all of a row's probability so far but for kBesideOneKey, and how much it has.
  float of_one[2] = {0.0f, 0.0f};
  int one_key[2] = {0, 0};
  barrier_wait(shared_address(&shared.queries_full[ring.stage]), ring.phase);
  const int32_t* tokens = shared.tokens[ring.stage];
  const int32_t* pairs = shared.pairs[ring.stage];
  const int place[2] = {heads.token(tile_row), heads.token(tile_row + 8)};
  const int pair[2] = {pairs[place[0]], pairs[place[1]]};
  const int last[2] = {tokens[place[0]] - own_key, tokens[place[1]] - own_key};
  issue_scores();
  wgmma_wait<0>();
  pin(scores);
  const auto visit = [&](auto part) {
    constexpr bool kLast = part.value == kJoinedParts - 1;
    if constexpr (kLast) {
      warp_arrive(shared_address(&shared.queries_empty[ring.stage]));
      ring.advance();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int key = 8 * j + 2 * quad;
        if (key > last[0]) scores[4 * j] = -INFINITY;
        if (key + 1 > last[0]) scores[4 * j + 1] = -INFINITY;
        if (key > last[1]) scores[4 * j + 2] = -INFINITY;
        if (key + 1 > last[1]) scores[4 * j + 3] = -INFINITY;
      }
    }
    if constexpr (part.value == 0) {
      make_probabilities(p, scores, scale_log2);
    } else {
      make_later_probabilities(p, scores, scale_log2, out, of_one);
    }
    const int stage = block_ring.stage;
    const uint32_t v_tile = shared_address(shared.units.keys[stage][1]);
    wgmma_fence();
    multiply_and_sum<4, (part.value > 0)>(out, p.operand, v_tile, ones - v_tile);
    wgmma_commit();
    block_ring.advance();
    if constexpr (!kLast) {
      barrier_wait(shared_address(&shared.units.full[block_ring.stage]), block_ring.phase);
      issue_scores();
    }
    wgmma_wait<0>();
    pin(out);
    if constexpr (!kLast) pin(scores);
    warp_arrive(shared_address(&shared.units.empty[stage]));
    const uint32_t bound[2] = {__float_as_uint(out[32] * kOneKeyShare),
                               __float_as_uint(out[34] * kOneKeyShare)};
    if (__any_sync(~0u, p.largest[0] > bound[0] || p.largest[1] > bound[1])) { // seldom
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = only_key(p.operand, r, quad, bound[r]);
        const uint32_t largest = largest_of_row(p.largest[r]);
        one_key[r] = key < 0 ? one_key[r] : part.value * kBlock + key;
        of_one[r] = key < 0 ? of_one[r] : __uint_as_float(largest & 0xFFFF0000u);
      }
    }
  };
  visit(std::integral_constant<int, 0>());
  visit(std::integral_constant<int, 1>());
  visit(std::integral_constant<int, 2>());
  store_packed(targets, out, p.offset, pair,
               [&](int r, uint32_t bound, bool finite, PackedPiece& piece, uint32_t& step) {
                 if (of_one[r] > __uint_as_float(bound) && finite)
                   keep_key(piece, step, one_key[r]);
               });
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
  constexpr int kKeyBytes = 2 * kBlock * kRowBytes;
  const int ones_behind =
      static_cast<int>(reinterpret_cast<uint8_t*>(shared.ones) - shared.units.keys[0][1]);
  const int head[2] = {heads.head(tile_row), heads.head(tile_row + 8)};
  [[maybe_unused]] const PackedTargets targets(params.packed, head, quad);
  uint8_t* results = shared.results[warpgroup];
  const uint32_t results_address = shared_address(results);
  Ring<Shared<Heads, kPacked>::kStages> ring;
  Ring<kBlockStages<kPacked>> block_ring;
  for (;;) {
    const int block_stage = block_ring.stage;
    barrier_wait(shared_address(&shared.units.full[block_stage]), block_ring.phase);
    const WorkItem loaded = shared.units.items[block_stage];
    const WorkItem item = {uniform(loaded.segment), uniform(loaded.begin), uniform(loaded.end), 0};
    if (item.segment == kNoSegment) break;
    if constexpr (kPacked) {
      if (uniform(loaded.index) < 0) {
        consume_joined(shared, ring, block_ring, targets, heads, item.begin, scale_log2);
        continue;
      }
    }
    const int key_base = item.segment % blocks * kBlock;
    const int own_end = item.begin + kBlock;
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
      // Ascending: a block's own tokens stand first in its list.
      if (begin < own_end && tokens[0] < key_base + kBlock) {
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

      Probabilities p;
      make_probabilities(p, scores, scale_log2);
      float out[36];
      wgmma_fence();
      multiply_and_sum<4>(out, p.operand, v_tile, ones_behind - block_stage * kKeyBytes);
      wgmma_commit();
      if (begin + chunk < item.end) issue_scores();
      wgmma_commit();
      wgmma_wait<1>();
      pin(out);
      if constexpr (kPacked) {
        store_packed(targets, out, p.offset, pair,
                     [&](int r, uint32_t bound, bool finite, PackedPiece& piece, uint32_t& step) {
                       if (!__any_sync(~0u, p.largest[r] > bound)) return; // mostly
                       const int key = only_key(p.operand, r, quad, bound);
                       if (key >= 0 && finite) keep_key(piece, step, key);
                     });
      } else {
        const float sum[2] = {out[32], out[34]};
        const float inverse[2] = {reciprocal_approximate(sum[0]), reciprocal_approximate(sum[1])};
        const float lse[2] = {p.offset[0] + log2_approximate(sum[0]),
                              p.offset[1] + log2_approximate(sum[1])};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          if (quad == 0 && pair[r] >= 0)
            params.partial_lse[static_cast<int64_t>(pair[r]) * heads.statistics() + head[r]] =
                lse[r];
        }
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
  for (int i = threadIdx.x; i < 16 * kRowBytes / 4; i += kThreads)
    shared.ones[i / (kRowBytes / 4)][i % (kRowBytes / 4)] = 0x3F803F80u;
  if constexpr (Heads::kPads) { // rows behind the last whole token
    const int used = chunk_tokens(heads) * heads.count() * kRowBytes / 16;
    for (int stage = 0; stage < Shared<Heads, kPacked>::kStages; ++stage) {
      for (int i = used + static_cast<int>(threadIdx.x); i < kChunkBytes / 16; i += kThreads)
        reinterpret_cast<uint4*>(shared.queries[stage])[i] = {};
    }
    const int behind = Shared<Heads, kPacked>::kTokens - chunk_tokens(heads);
    for (int i = threadIdx.x; i < Shared<Heads, kPacked>::kStages * behind; i += kThreads) {
      const int token = chunk_tokens(heads) + i % behind;
      shared.pairs[i / behind][token] = -1;
      shared.tokens[i / behind][token] = 0;
    }
  }
  fence_async_proxy();
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shared<Heads, kPacked>::kStages; ++i) {
      barrier_init(shared_address(&shared.queries_full[i]), kProducerWarps * kWarpArrivals);
      barrier_init(shared_address(&shared.queries_empty[i]), 4 * kConsumers * kWarpArrivals);
    }
    init_units(shared.units, kProducerWarps, 4 * kConsumers);
    fence_barrier_init();
  }
  __syncthreads();
  UnitRange units = units_of(params.segment_item_start, params.round, blocks);
  if constexpr (kPacked)
    units.joined = params.round.lanes * joined_blocks(params).units_of_a_lane();
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
