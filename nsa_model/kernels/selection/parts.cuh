#pragma once
// Parts of selection_kernel: the loads of queries, keys and log-sums, a product with its
// probabilities, and the choice of blocks. Device code only.
//
// They are objects that hold references, like lambdas that capture by reference, and functions with
// reference parameters. So the machine code equals that of a single function
// (docs/lab/2026-11-23-kernel-functions.md).

#include "nsa_model/kernels/selection/scores.cuh"

namespace nsa::kernels::selection {

#if NSA_HOPPER_CODE

// First token of a tile; negative if there is none.
struct TokenOf {
  const TileOrder& order;
  __device__ int operator()(int number) const {
    return number < 0 ? -1 : (order.tiles - 1 - number) * Tile::kTokens;
  }
};

struct RowOf {
  const int& batch;
  const AttentionShape& shape;
  const int& group;
  __device__ int64_t operator()(int token) const {
    return (static_cast<int64_t>(batch) * shape.sequence + token) * shape.groups + group;
  }
};

// Starts the loads of a product's keys into their stage.
template <int kDim> struct KeyLoader {
  const CUtensorMap& k_map;
  const CUtensorMap& rest_map;
  const uint32_t& keys;
  const uint32_t& keys_full;
  const int& group;
  const int& batch;

  __device__ void operator()(const ScorePlan& plan, int product) const {
    const int stage = product % Tile::kKeyStages;
    const uint32_t full = keys_full + kBarrierBytes * stage;
    const uint32_t into = keys + stage * Tile::kKeyBytes<kDim>;
    const int step = product / kBlockKeys;
    barrier_expect(full, Tile::kKeyBytes<kDim>);
    if (step < plan.steps()) {
#pragma unroll
      for (int panel = 0; panel < kPanels<kDim>; ++panel) {
        tma_load(into + panel * Tile::kPanelKeyBytes, &k_map, group * kDim + panel * kPanelDims,
                 step * Tile::kStepBlocks, product % kBlockKeys, batch, full);
      }
    } else {
#pragma unroll
      for (int panel = 0; panel < kPanels<kDim>; ++panel) {
        tma_load(into + panel * Tile::kPanelKeyBytes, &rest_map, group * kDim + panel * kPanelDims,
                 (plan.whole + product % kBlockKeys) * kUnitBlocks, 0, batch, full);
      }
    }
  }
};

// Starts the loads of a tile's queries and of as many keys as there are free stages. The warps
// divide this work, as for later keys. If one warp did all of it, the others would wait.
template <typename Heads, typename LoadKeys> struct FirstLoader {
  const Heads& heads;
  Shared<Heads>& shared;
  const CUtensorMap& q_map;
  const uint32_t& queries;
  const int& group;
  const int& batch;
  const int& warp;
  const int& lane;
  const LoadKeys& load_keys;

  __device__ void operator()(int first_token) const {
    if (lane > 0) return;
    if (warp == kWarpgroupWarps - 1) {
      const uint32_t full = shared_address(&shared.queries_full);
      barrier_expect(full, kPanels<Heads::kDim> * heads.count() * Tile::kTokens * kRowBytes);
#pragma unroll
      for (int panel = 0; panel < kPanels<Heads::kDim>; ++panel) {
        tma_load(queries + panel * panel_query_bytes<Heads>(), &q_map, panel * kPanelDims,
                 first_token, group * heads.count(), batch, full);
      }
    }
    const ScorePlan plan(first_token / kBlock);
    if (warp < min(plan.products(), Tile::kKeyStages)) load_keys(plan, warp);
  }
};

// Log-sums of a tile that a thread reads.
template <typename Heads>
constexpr int kLsePieces = Heads::kPads ? kMostHeads * Tile::kTokens / kWarpgroupThreads : 1;

// Stores the log-sums of read_log_sums in shared memory, negated and in log2.
template <typename Heads>
__device__ __forceinline__ void keep_log_sums(Shared<Heads>& shared, const Heads& heads,
                                              const int& thread,
                                              const float (&lse_pieces)[kLsePieces<Heads>]) {
#pragma unroll
  for (int i = 0; i < kLsePieces<Heads>; ++i) {
    const int piece = i * kWarpgroupThreads + thread;
    const int token = piece / heads.count();
    if (token >= Tile::kTokens) continue;
    shared.lse[token / 2][piece % heads.count()][token % 2] = -kLog2e * lse_pieces[i];
  }
}

// Reads the log-sums of a tile's tokens. Each thread reads a few.
template <typename Heads, typename RowOf>
__device__ __forceinline__ void
read_log_sums(const SelectionParams& params, const Heads& heads, const int& first_token,
              const int& thread, const RowOf& row_of, float (&lse_pieces)[kLsePieces<Heads>]) {
  const AttentionShape& shape = params.shape;
#pragma unroll
  for (int i = 0; i < kLsePieces<Heads>; ++i) {
    const int piece = i * kWarpgroupThreads + thread;
    const int token = piece / heads.count();
    if (token >= Tile::kTokens) continue;
    lse_pieces[i] =
        params.lse_cmp[row_of(min(first_token + token, shape.sequence - 1)) * heads.count() +
                       piece % heads.count()];
  }
}

// Waits for the keys of a product and adds up its probabilities, if the warp has any to add.
template <typename Heads, typename LoadKeys, typename LseFrom> struct ProductScorer {
  const int& warp;
  const int& products;
  const int& lane;
  const uint32_t& keys_empty;
  uint32_t& key_parities;
  const LoadKeys& load_keys;
  const ScorePlan& plan;
  const uint32_t& keys_full;
  const Heads& heads;
  const uint32_t& keys;
  const uint32_t& queries;
  const LseFrom& lse_from;
  float4 (&lse)[6];
  const SelectionParams& params;

  __device__ void operator()(int product, int key, bool adds, float (&sums)[4][2]) const {
    constexpr int kLseHeads = Shared<Heads>::kLseHeads;
    const int stage = key % Tile::kKeyStages;
    // The load reuses the stage of the previous product, after all warps have read it.
    const int later = product - 1 + Tile::kKeyStages;
    if (warp == key && product > 0 && later < products && lane == 0) {
      const int before = (stage + Tile::kKeyStages - 1) % Tile::kKeyStages;
      barrier_wait(keys_empty + kBarrierBytes * before, (key_parities >> before & 1u) ^ 1u);
      load_keys(plan, later);
    }
    barrier_wait(keys_full + kBarrierBytes * stage, key_parities >> stage & 1u);
    key_parities ^= 1u << stage;
#pragma unroll 1
    for (int first_head = 0; first_head < heads.count(); first_head += Tile::kPassHeads) {
      float s[kLaneFloats<Tile::kRows>];
      wgmma_fence();
      multiply_rows<Tile::kRows, Heads::kDim>(
          s, keys + stage * Tile::kKeyBytes<Heads::kDim>, Tile::kPanelKeyBytes,
          queries + first_head * Tile::kTokens * kRowBytes, panel_query_bytes<Heads>());
      wgmma_commit();
      wgmma_wait<0>();
      pin(s);
      if (first_head + Tile::kPassHeads >= heads.count())
        warp_arrive(keys_empty + kBarrierBytes * stage);
      if (adds) {
        const int pass_heads = heads.count() - first_head;
        if (Heads::kPads) load_lse<kLseHeads>(lse_from + first_head, pass_heads, lse);
        add_heads(s, lse, params.scale * kLog2e, pass_heads, sums);
      }
    }
  }
};
template <typename Heads, typename LoadKeys, typename LseFrom>
ProductScorer(const int&, const int&, const int&, const uint32_t&, uint32_t&, const LoadKeys&,
              const ScorePlan&, const uint32_t&, const Heads&, const uint32_t&, const uint32_t&,
              const LseFrom&, float4 (&)[6], const SelectionParams&)
    -> ProductScorer<Heads, LoadKeys, LseFrom>;

__device__ __forceinline__ void add_key(const int& key, const float (&sums)[4][2],
                                        float (&first_keys)[4][2], float (&last_key)[4][2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& sum = key < kBlockKeys - 1 ? first_keys[i / 2][i % 2] : last_key[i / 2][i % 2];
    sum = key % (kBlockKeys - 1) == 0 ? sums[i / 2][i % 2] : sum + sums[i / 2][i % 2];
  }
}

// Writes the blocks of the tokens for which this warp picks.
template <bool kFilters, typename RowOf>
__device__ __forceinline__ void pick(const SelectionParams& params, const ScorePlan& plan,
                                     const int& own, const int& first_token, const int& warp,
                                     const int& lane, const int& stride, float* const& scores,
                                     const RowOf& row_of, Filter* const& filter) {
  if (plan.rest > 0) {
    join_partial_scores(plan, own - 2, scores, stride);
    __syncwarp();
  }
  const int place = warp * kPickTokens + lane / kPickLanes;
  const int token = first_token + place;
  int32_t* slots =
      token < params.shape.sequence ? params.indices + row_of(token) * kSlots : nullptr;
  if constexpr (kFilters) {
    if (plan.units > kPickLanes) {
      // A thread's token 2 quad + t % 2 + 8 (t / 2) is number t of its maxima.
      const int t = place / kGroupColumns * 2 + place % 2;
      int maxima[kLaneKept];
#pragma unroll
      for (int i = 0; i < kLaneKept; ++i) {
        const int of = i * kWarpThreads + lane % kPickLanes * 4 + place % kGroupColumns / 2;
        maxima[i] = reinterpret_cast<const int*>(&filter->maxima[of])[t];
      }
      if (pick_kept_blocks<kScoreRecord>(scores + place * stride, maxima, filter->kept[place], own,
                                         slots))
        return;
    }
  }
  pick_blocks<kScoreRecord>(scores + place * stride, own, slots);
}

// Tokens that see no more blocks than they select get all of them.
template <typename TokenOf, typename RowOf>
__device__ __forceinline__ void
write_unscored(const SelectionParams& params, const TileOrder& order, const int& cta,
               const int& thread, const TokenOf& token_of, const RowOf& row_of) {
  int first_token;
  for (int round = 0; (first_token = token_of(order.unscored_tile_of(cta, round))) >= 0; ++round) {
    const int tokens = min(Tile::kTokens, params.shape.sequence - first_token);
    for (int i = thread; i < tokens * kSlots; i += kWarpgroupThreads) {
      const int slot = i % kSlots;
      params.indices[row_of(first_token + i / kSlots) * kSlots + slot] =
          slot <= first_token / kBlock ? slot : -1;
    }
  }
}

#endif // NSA_HOPPER_CODE

} // namespace nsa::kernels::selection
