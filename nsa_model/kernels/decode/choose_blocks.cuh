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

// Sends a warp's results of the compressed branch to every CTA. `last_step` is the warp's last
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
#pragma unroll
    for (int to = 0; to < Tile::kMostCtas; to += 4)
      if (to + lane % 4 < cta.ctas())
        send(&shared.compressed[cta.rank][thread / kWarpThreads][row], partial, to + lane % 4,
             shared.compressed_done);
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
  if (thread < Shared<kHalves>::kRows && thread >= heads) {
    shared.weight[thread] = 0;
    shared.weight_reference[thread] = -kNoReference;
  }
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
    if (thread % kLanes == 0) {
      shared.weight[head] = 1.0f / sum;
      shared.weight_reference[head] = reference;
    }
  }
}

// Returns a block's score: its probabilities over all heads (Eq. 9 and 10). `block` must begin in
// this CTA. The code does not branch on the number of heads, so all loads are in flight together.
template <int kHalves>
__device__ __forceinline__ float score_of(const Shared<kHalves>& shared, const Cta& cta, int heads,
                                          int block) {
  const int step = block / kStepBlocks;
  // Its first row also belongs to the last step.
  const bool is_first = block % kStepBlocks == 0 && step > 0;
  const bool is_here = is_first && step > cta.compressed.begin;
  float score = 0;
#pragma unroll
  for (int row = 0; row < kHalfHeads * kHalves; ++row) {
    const int head = min(row, heads - 1);
    const float* const sums = cta.sums_of(step, heads, head);
    const float* const last = cta.sums_of(is_here ? step - 1 : step, heads, head) + kStepBlocks;
    const Partial remote = shared.before[row];
    const int reference = shared.weight_reference[row];
    const int last_reference = is_here ? __float_as_int(last[1]) : remote.reference;
    float sum =
        sums[block % kStepBlocks] * power_of_two(__float_as_int(sums[kStepBlocks + 1]) - reference);
    if (is_first)
      sum += (is_here ? last[0] : remote.sum) * power_of_two(last_reference - reference);
    score = fmaf(shared.weight[row], sum, score);
  }
  return score;
}

// Writes the CTA's best blocks. keys: those of its `count` blocks.
template <int kHalves>
__device__ __forceinline__ void find_best_of_cta(Shared<kHalves>& shared, const Cta& cta,
                                                 int count) {
  constexpr int kChoosers = Shared<kHalves>::kChoosers;
  const int thread = static_cast<int>(threadIdx.x);
  const bool finds_first = count > kMostCompared; // first finds the best blocks of each warp
  const int* keys = cta.keys;
  int candidates = count;
  if (finds_first) {
    const int begin = count * (thread / kWarpThreads) / kChoosers;
    const int end = count * (thread / kWarpThreads + 1) / kChoosers;
    const int place = thread / kWarpThreads * kPickedBlocks;
    find_best(cta.keys, begin, end, shared.found_keys + place, shared.found_places + place);
    keys = shared.found_keys;
    candidates = round_up(kChoosers * kPickedBlocks, 4);
    if (thread < candidates - kChoosers * kPickedBlocks)
      shared.found_keys[kChoosers * kPickedBlocks + thread] = kNoKey;
    meet_warps(kChoosers);
  }
#pragma unroll 1
  for (int i = thread / 2; i < round_up(candidates, kRankedByWarp);
       i += kRankedByWarp * kChoosers) {
    const int rank = rank_of(keys, candidates, min(i, candidates - 1));
    if (thread % 2 != 0 || i >= candidates || keys[i] == kNoKey || rank >= kPickedBlocks) continue;
    shared.best_keys[rank] = keys[i];
    shared.best_blocks[rank] =
        cta.compressed.begin * kStepBlocks + (finds_first ? shared.found_places[i] : i);
  }
}

// Sends the CTA's keys or best blocks to all CTAs.
template <int kHalves>
__device__ __forceinline__ void send_list(Shared<kHalves>& shared, const Cta& cta, int count) {
  constexpr int kChoosers = Shared<kHalves>::kChoosers;
  const int thread = static_cast<int>(threadIdx.x);
  const bool all = cta.compares_all();
  if (!all) {
    if (count > 0) find_best_of_cta(shared, cta, count);
    const int lists = cta.ctas() * kPickedBlocks;
    if (thread < round_up(lists, 4) - lists) shared.list_keys[lists + thread] = kNoKey;
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
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kPickedBlocks) shared.best_keys[thread] = kNoKey;
  await(shared.compressed_done);
  weigh_heads(shared, cta, heads);
  meet_warps(kChoosers);
  const int first = cta.compressed.begin * kStepBlocks;
  const int count = cta.compressed.end * kStepBlocks - first;
#pragma unroll 1
  for (int i = thread; i < count; i += kWarpThreads * kChoosers) {
    const int block = first + i;
    cta.keys[i] = block > 0 && block <= cta.own - 2
                      ? __float_as_int(score_of(shared, cta, heads, block))
                      : kNoKey;
  }
  meet_warps(kChoosers);
  send_list(shared, cta, count);
  await(shared.lists_done);
  // Lists are in block order, so of equal scores the lower block comes first.
  const bool all = cta.compares_all();
  const int candidates = all ? steps_of(compressed_keys(cta.length)) * kStepBlocks
                             : round_up(cta.ctas() * kPickedBlocks, 4);
#pragma unroll 1
  for (int i = thread / 2; i < round_up(candidates, kRankedByWarp);
       i += kRankedByWarp * kChoosers) {
    const int rank = rank_of(shared.list_keys, candidates, min(i, candidates - 1));
    if (thread % 2 == 0 && i < candidates && shared.list_keys[i] != kNoKey && rank < kPickedBlocks)
      shared.taken[rank] = all ? i : shared.list_blocks[i];
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
