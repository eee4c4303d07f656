#pragma once
// Computes block scores from the results of the compressed branch's steps. Half of the warps of a
// cluster then choose a KV head's blocks. Tests compile it for the host.

#include "nsa_model/kernels/decode/shared.cuh"

namespace nsa::kernels::decode {

// Writes the sums of a step's probabilities by block.
template <int kHalves>
__device__ __forceinline__ void write_block_sums(const Cta& cta, int heads, int step,
                                                 const WarpAttention<kHalves>& attention,
                                                 const float (&p)[kHalves][kLaneKeys]) {
  const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
  const int quad = lane % 4;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int head = lane / 4 + kHalfHeads * half;
    const BlockSums of_blocks = block_sums(p[half]);
    if (head >= heads) continue;
    float* const sums = cta.sums_of(step, heads, head);
    *reinterpret_cast<float2*>(sums + 2 * quad) = {of_blocks.first, of_blocks.second};
    if (quad == 3)
      *reinterpret_cast<float2*>(sums + kStepBlocks) = {p[half][kLaneKeys - 1],
                                                        __int_as_float(attention.reference[half])};
  }
}

// Gives a warp's results of the compressed branch to every CTA. `last_step` is the warp's last
// step, to which p belongs; -1 if it had none.
template <int kHalves>
__device__ __forceinline__ void
share_compressed(Shared<kHalves>& shared, const Cta& cta, int last_step,
                 const WarpAttention<kHalves>& attention, const float (&p)[kHalves][kLaneKeys]) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarpThreads;
  // The next step may need this one's last key. If that step is in another CTA, the key's
  // probability is sent there.
  const int steps = steps_of(compressed_keys(cta.length));
  const bool ends_cta = last_step >= 0 && last_step == cta.compressed.end - 1 &&
                        last_step + 1 < steps && lane % 4 == 3;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = lane / 4 + kHalfHeads * half;
    const Partial partial = {attention.reference[half], quad_sum(attention.sum[half])};
    Partial& mine = shared.compressed[cta.rank][thread / kWarpThreads][row];
    if (cta.log_ctas == 0 && lane % 4 == 0) mine = partial;
#pragma unroll
    for (int to = 0; to < Tile::kMostCtas; to += 4)
      if (cta.log_ctas > 0 && to + lane % 4 < cta.ctas())
        send(&mine, partial, to + lane % 4, shared.compressed_done);
    if (ends_cta)
      send(&shared.before[row], Partial{attention.reference[half], p[half][kLaneKeys - 1]},
           part_of(steps, cta.log_ctas, last_step + 1), shared.compressed_done);
  }
  arrive(shared.compressed_done);
}

// Computes the heads' sums over all warps of the cluster, which scores need. Half a warp works on
// each head.
template <int kHalves>
__device__ __forceinline__ void weigh_heads(Shared<kHalves>& shared, const Cta& cta, int heads) {
  constexpr int kChoosers = Shared<kHalves>::kChoosers;
  constexpr int kLanes = 16;
  const int thread = static_cast<int>(threadIdx.x);
  // Number of warps of a CTA that may have had a step, rounded up to a power of two.
  const int most = (steps_of(compressed_keys(cta.length)) + cta.ctas() - 1) >> cta.log_ctas;
  const int log_warps = most <= 1 ? 0 : most == 2 ? 1 : most <= 4 || kHalves == 2 ? 2 : 3;
  static_assert(Shared<1>::kWarps == 8 && Shared<2>::kWarps == 4);
  if (thread < Shared<kHalves>::kRows && thread >= heads)
    shared.weight[thread] = {-kNoReference, 0};
  const int entries = cta.ctas() << log_warps;
#pragma unroll 1
  for (int first = 0; first < heads; first += 2 * kChoosers) {
    const int head = min(first + thread / kLanes, heads - 1);
    int reference = kNoReference;
    float sum = 0;
    for (int i = thread % kLanes; i < entries; i += kLanes) {
      const Partial partial = shared.compressed[i >> log_warps][i & ((1 << log_warps) - 1)][head];
      const int larger = max(reference, partial.reference);
      sum = sum * power_of_two(reference - larger) +
            partial.sum * power_of_two(partial.reference - larger);
      reference = larger;
    }
    const int own = reference;
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      reference = max(reference, __shfl_xor_sync(~0u, reference, distance));
    sum *= power_of_two(own - reference);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(~0u, sum, distance);
    if (thread % kLanes == 0) shared.weight[head] = {reference, 1.0f / sum};
  }
}

// Writes the keys of the CTA's `count` blocks: scores, which are the probabilities over all heads
// (Eq. 9 and 10). A thread computes two neighbouring blocks. The code does not branch on the number
// of heads, so all loads are in flight together.
template <int kHalves>
__device__ __forceinline__ void score_blocks(const Shared<kHalves>& shared, const Cta& cta,
                                             int heads, int count) {
  constexpr int kRows = Shared<kHalves>::kRows;
  constexpr int kPairs = kStepBlocks / 2;
  constexpr int kThreads = kWarpThreads * Shared<kHalves>::kChoosers;
  Partial weights[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row)
    weights[row] = shared.weight[row];
  const int places = round_up(count, 1 << log_group(count));
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); 2 * i < places; i += kThreads) {
    const int step = cta.compressed.begin + min(2 * i, count - 1) / kStepBlocks;
    const int pair = i % kPairs;
    // The step's first row also belongs to the last step, which may be of another CTA.
    const bool has_last = pair == 0 && step > 0;
    const bool is_here = has_last && step > cta.compressed.begin;
    float2 score = {};
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float* const sums = cta.sums_of(step, heads, min(row, heads - 1));
      const float2 own = *reinterpret_cast<const float2*>(sums + 2 * pair);
      const float scale =
          power_of_two(__float_as_int(sums[kStepBlocks + 1]) - weights[row].reference);
      const float* const before = is_here ? sums - heads * kStepWords : sums;
      const float2 here = *reinterpret_cast<const float2*>(before + kStepBlocks);
      const Partial last = is_here ? Partial{__float_as_int(here.y), here.x} : shared.before[row];
      float first = own.x * scale;
      if (has_last) first += last.sum * power_of_two(last.reference - weights[row].reference);
      score.x = fmaf(weights[row].sum, first, score.x);
      score.y = fmaf(weights[row].sum, own.y * scale, score.y);
    }
    const int block = cta.compressed.begin * kStepBlocks + 2 * i;
    const auto key = [&](int at, float value) {
      const bool counts = at > 0 && at <= cta.own - 2 && 2 * i < count;
      return counts ? key_of(value) : kNoKey;
    };
    *reinterpret_cast<int2*>(cta.keys + 2 * i) = {key(block, score.x), key(block + 1, score.y)};
  }
}

// Sends the CTA's keys or best blocks to all CTAs.
template <int kHalves>
__device__ __forceinline__ void send_list(Shared<kHalves>& shared, const Cta& cta, int count) {
  constexpr int kChoosers = Shared<kHalves>::kChoosers;
  const int thread = static_cast<int>(threadIdx.x);
  const bool all = cta.compares_all();
  if (!all) {
    if (thread < kPickedBlocks) shared.best_keys[thread] = kNoKey;
    const int lists = cta.ctas() * kPickedBlocks;
    if (thread < round_up(lists, 4) - lists) shared.list_keys[lists + thread] = kNoKey;
    meet_warps(kChoosers);
    if (count > 0)
      find_best<kChoosers>(cta.keys, count, shared.groups, [&](int rank, int place) {
        shared.best_keys[rank] = cta.keys[place];
        shared.best_blocks[rank] = cta.compressed.begin * kStepBlocks + place;
      });
    meet_warps(kChoosers);
  }
  const int items = (all ? count : kPickedBlocks) << cta.log_ctas;
#pragma unroll 1
  for (int i = thread; i < items; i += kWarpThreads * kChoosers) {
    const int to = i & (cta.ctas() - 1);
    const int from = i >> cta.log_ctas;
    if (all) {
      send(&shared.list_keys[cta.compressed.begin * kStepBlocks + from], cta.keys[from], to,
           shared.lists_done);
      continue;
    }
    const int place = cta.rank * kPickedBlocks + from;
    send(&shared.list_keys[place], shared.best_keys[from], to, shared.lists_done);
    send(&shared.list_blocks[place], shared.best_blocks[from], to, shared.lists_done);
  }
  arrive(shared.lists_done);
}

// The choosers of every CTA call it. It writes the KV head's 13 blocks to each CTA's `taken`, and
// blocks_taken signals this.
template <int kHalves>
__device__ __forceinline__ void choose_blocks(Shared<kHalves>& shared, const Cta& cta, int heads) {
  constexpr int kChoosers = Shared<kHalves>::kChoosers;
  await(shared.compressed_done);
  weigh_heads(shared, cta, heads);
  meet_warps(kChoosers);
  const int count = (cta.compressed.end - cta.compressed.begin) * kStepBlocks;
  score_blocks(shared, cta, heads, count);
  meet_warps(kChoosers);
  if (cta.log_ctas == 0) {
    find_best<kChoosers>(cta.keys, count, shared.groups,
                         [&](int rank, int place) { shared.taken[rank] = place; });
  } else {
    send_list(shared, cta, count);
    await(shared.lists_done);
    // Lists are in block order, so of equal scores the lower block comes first.
    const bool all = cta.compares_all();
    const int candidates = all ? steps_of(compressed_keys(cta.length)) * kStepBlocks
                               : round_up(cta.ctas() * kPickedBlocks, 4);
    find_best<kChoosers>(shared.list_keys, candidates, shared.groups, [&](int rank, int place) {
      shared.taken[rank] = all ? place : shared.list_blocks[place];
    });
  }
  arrive(shared.blocks_taken);
}

// Writes the selected blocks for the caller: ascending, then -1. One warp of the cluster calls it.
__device__ __forceinline__ void write_indices(int32_t* slots, const int* taken, int length) {
  const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
  const int own = own_block(length);
  if (lane >= kSlots) return;
  if (!chooses_blocks(length)) {
    slots[lane] = lane < selected_count(length) ? lane : -1;
  } else if (lane < kPickedBlocks) {
    slots[slot_of(taken, lane)] = taken[lane];
  } else {
    slots[lane == kPickedBlocks ? 0 : lane] = lane == kPickedBlocks ? 0 : own - (kSlots - 1 - lane);
  }
}

} // namespace nsa::kernels::decode
