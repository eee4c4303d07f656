#pragma once
// Block scores from what the steps of the compressed branch leave, and the choice of a KV head's 16
// blocks. Tests compile it for the host.

#include "nsa_model/kernels/decode/best_blocks.cuh"
#include "nsa_model/kernels/decode/pieces.cuh"

namespace nsa::kernels::decode {

// What the choice of blocks keeps.
struct Choice {
  float weight[kMostRows]; // 1 / sum of a head's probabilities
  int reference[kMostRows];
  Candidate found[kCandidates];
  int taken[kPickedBlocks];
};

// Scores of a step's blocks: their probabilities over all heads (Eq. 9 and 10). Without branches on
// the number of heads, so that all loads are under way together; others have weight 0.
template <int kHalves>
__device__ __forceinline__ void score_step(const Work& work, const Choice& choice, int kv_head,
                                           int step, float (&scores)[kStepBlocks]) {
  static_assert(kStepBlocks == 8, "two vectors of four");
  const int heads = work.step.heads;
  const int64_t here = work.step_row(kv_head, step);
  const int64_t before = work.step_row(kv_head, max(step - 1, 0));
#pragma unroll
  for (int i = 0; i < kStepBlocks; ++i)
    scores[i] = 0;
#pragma unroll
  for (int row = 0; row < 8 * kHalves; ++row) {
    const int head = min(row, heads - 1);
    const auto* sums =
        reinterpret_cast<const float4*>(work.block_sum + (here + head) * kStepBlocks);
    const float4 low = __ldcg(sums);
    const float4 high = __ldcg(sums + 1);
    const float scale =
        power_of_two(__ldcg(work.step_reference + here + head) - choice.reference[row]);
    const float earlier =
        __ldcg(work.last_probability + before + head) *
        power_of_two(__ldcg(work.step_reference + before + head) - choice.reference[row]);
    const float weight = choice.weight[row];
    const float of_blocks[kStepBlocks] = {low.x,  low.y,  low.z,  low.w,
                                          high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kStepBlocks; ++i) {
      float sum = of_blocks[i] * scale;
      if (i == 0 && step > 0) sum += earlier;
      scores[i] = fmaf(weight, sum, scores[i]);
    }
  }
}

// The kv head's 16 blocks, by a CTA after all of the kv head's `pieces` compressed pieces.
template <int kHalves>
__device__ void choose_blocks(const Work& work, int kv_head, int pieces, Statistics& statistics,
                              Choice& choice, int* keys) {
  const int thread = static_cast<int>(threadIdx.x);
  const int own = own_block(work.length(kv_head));
  const int heads = work.step.heads;
  load_statistics(work, kv_head, 0, pieces, statistics);
  for (int head = thread / 32; head < heads; head += Tile::kWarps) {
    const HeadTotal total = total_of(statistics, heads, 0, pieces, head);
    if (thread % 32 == 0) {
      choice.weight[head] = 1.0f / total.sum;
      choice.reference[head] = total.reference;
    }
  }
  if (thread >= heads && thread < 8 * kHalves) {
    choice.weight[thread] = 0;
    choice.reference[thread] = -kNoReference;
  }
  __syncthreads();
  for (int step = thread; step <= (own - 2) / kStepBlocks; step += Tile::kThreads) {
    float scores[kStepBlocks];
    score_step<kHalves>(work, choice, kv_head, step, scores);
#pragma unroll
    for (int i = 0; i < kStepBlocks; ++i)
      if (step * kStepBlocks + i <= own - 2)
        keys[step * kStepBlocks + i] = __float_as_int(scores[i]);
  }
  __syncthreads();
  find_best(keys, own, thread / 32, choice.found + thread / 32 * kPickedBlocks);
  __syncthreads();
  if (thread < kCandidates && choice.found[thread].key != kNoKey) {
    const int rank = rank_of(choice.found, thread);
    if (rank < kPickedBlocks) choice.taken[rank] = choice.found[thread].block;
  }
  __syncthreads();
  int32_t* const slots = work.step.indices + static_cast<int64_t>(kv_head) * kSlots;
  if (thread < kPickedBlocks) slots[slot_of(choice.taken, thread)] = choice.taken[thread];
  if (thread < kForcedBlocks)
    slots[thread == 0 ? 0 : kSlots - kForcedBlocks + thread] = thread == 0 ? 0 : own - 2 + thread;
}

// Leaves the sums of a step's probabilities by block.
template <int kHalves>
__device__ __forceinline__ void write_block_sums(const Work& work, int kv_head, int step,
                                                 const WarpAttention<kHalves>& attention,
                                                 const float (&p)[kHalves][kLaneKeys]) {
  const int thread = static_cast<int>(threadIdx.x);
  const int quad = thread % 4;
  const int heads = work.step.heads;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int head = thread % 32 / 4 + 8 * half;
    const BlockSums of_blocks = block_sums(p[half]);
    if (head >= heads) continue;
    const int64_t row = work.step_row(kv_head, step) + head;
    *reinterpret_cast<float2*>(work.block_sum + row * kStepBlocks + 2 * quad) = {of_blocks.first,
                                                                                 of_blocks.second};
    if (quad == 3) work.last_probability[row] = p[half][kLaneKeys - 1];
    if (quad == 0) work.step_reference[row] = attention.reference[half];
  }
}

} // namespace nsa::kernels::decode
