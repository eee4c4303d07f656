#pragma once
// The work of a CTA that processes a KV head alone and has a multiprocessor to itself (decode.cu).
// Its warps have registers for two steps, so each loads its next step's keys before it uses the
// current ones. Tests compile it for the host.

#include "nsa_model/kernels/decode/cta.cuh"

namespace nsa::kernels::decode {

// Steps of the chosen blocks that the choosers attend to. With the forced blocks these are six
// steps for each chooser. Each other warp has six with its four of the window.
inline constexpr int kChooserSteps = 18;

// As steps_of_part(), but the choosers attend to the forced blocks and to more of the chosen ones.
__device__ __forceinline__ Steps steps_alone(int part, const Cta& cta, int warp) {
  constexpr int kChoosers = Tile::kChoosers<1>;
  const bool is_chooser = warp < kChoosers;
  if (part < kForcedPart || !chooses_blocks(cta.length)) return steps_of_part<1>(part, cta, warp);
  if (part == kForcedPart) return {warp, is_chooser ? kBlockSteps * kForcedBlocks : 0, kChoosers};
  // The first half of the choosers have one forced step more.
  if (is_chooser) return {(warp + kChoosers / 2) % kChoosers, kChooserSteps, kChoosers};
  return {kChooserSteps + warp - kChoosers, kBlockSteps * kPickedBlocks, kChoosers};
}

// A warp's place in its steps, part after part. Steps without keys are left out.
struct Walk {
  const DecodeParams& step;
  const Cta& cta;
  const int* taken; // read in kChosenPart only
  int warp;
  int part = kCompressedPart;
  Steps steps = steps_alone(kCompressedPart, cta, warp);

  __device__ __forceinline__ Source source() const {
    return source_of(step, cta, part, steps.begin, taken);
  }
  // Stays at a step that has keys, or moves to the next one up to part `last`. Returns whether
  // there is one.
  __device__ __forceinline__ bool find(int last) {
#pragma unroll 1
    while (true) {
      while (steps.begin < steps.end && source().count <= 0)
        steps.begin += steps.stride;
      if (steps.begin < steps.end) return true;
      if (part >= last) return false;
      steps = steps_alone(++part, cta, warp);
    }
  }
};

// Merges the warps' results and writes those of the KV head.
__device__ __forceinline__ void write_alone(const Shared<1>& shared, const DecodeParams& step,
                                            const Cta& cta) {
  constexpr int kWarps = Shared<1>::kWarps;
  constexpr int kPairs = kHeadDim / 2;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < step.heads * kPairs; i += Tile::kThreads<1>) {
    const int row = i / kPairs;
    const int column = i % kPairs * 2;
    float2 out = {};
#pragma unroll
    for (int branch = 0; branch < kBranches; ++branch) {
      Partial of_warps[kWarps];
      int reference = kNoReference;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        of_warps[w] = shared.partial[branch][w][row];
        reference = max(reference, of_warps[w].reference);
      }
      float sum = 0;
      float2 of_branch = {};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float2 part = *reinterpret_cast<const float2*>(&shared.out[branch][w][row][column]);
        const bool had_step = of_warps[w].reference != kNoReference;
        const float scale = power_of_two(of_warps[w].reference - reference);
        sum = fmaf(scale, of_warps[w].sum, sum);
        of_branch.x = fmaf(scale, had_step ? part.x : 0.0f, of_branch.x);
        of_branch.y = fmaf(scale, had_step ? part.y : 0.0f, of_branch.y);
      }
      // A branch without visible keys gives 0.
      const float factor = sum > 0 ? shared.gates[branch][row] / sum : 0.0f;
      out.x = fmaf(factor, of_branch.x, out.x);
      out.y = fmaf(factor, of_branch.y, out.y);
    }
    const int64_t to = (static_cast<int64_t>(cta.kv_head) * step.heads + row) * kHeadDim + column;
    *reinterpret_cast<uint32_t*>(step.out + to) = pack_bf16(out.x, out.y);
  }
}

__device__ __forceinline__ void decode_alone(const DecodeParams& step, int unit,
                                             Shared<1>& shared) {
  constexpr int kLastWarp = Shared<1>::kWarps - 1;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const Cta cta = cta_of(step, unit, shared);
  const bool chooses = chooses_blocks(cta.length);
  Walk walk = {step, cta, shared.taken, warp};
  StepKeys ahead;
  bool has_step = walk.steps.begin < walk.steps.end;
  if (has_step) // first of all, because the choice of blocks waits for these keys
    load(ahead, source_of(step, cta, kCompressedPart, walk.steps.begin, nullptr));
  prepare(shared, cta, step.heads);
  meet_cta();
  if (!has_step) {
    has_step = walk.find(chooses ? kForcedPart : kChosenPart);
    if (has_step) load(ahead, walk.source());
  }
  WarpAttention<1> attention(step.q + static_cast<int64_t>(cta.kv_head) * step.heads * kHeadDim,
                             step.heads, step.scale);
  float p[1][kLaneKeys];
  bool had_step = false; // whether there was a step since the last stored result
#pragma unroll 1
  for (int part = kCompressedPart; part < kParts; ++part) {
    if (part == kChosenPart && chooses) await(shared.blocks_taken);
    if (part == kChosenPart && !has_step) {
      has_step = walk.find(kChosenPart);
      if (has_step) load(ahead, walk.source());
    }
    int last = -1;
#pragma unroll 1
    while (has_step && walk.part == part) {
      const int count = walk.source().count;
      const StepKeys keys = ahead;
      last = walk.steps.begin;
      walk.steps.begin += walk.steps.stride;
      const bool is_chosen = !chooses || (part != kCompressedPart && has_come(shared.blocks_taken));
      has_step = walk.find(is_chosen ? kChosenPart : kForcedPart);
      if (has_step) load(ahead, walk.source());
      attention.attend(keys, count, p);
      had_step = true;
      if (part == kCompressedPart && chooses) write_block_sums(cta, step.heads, last, attention, p);
    }
    if (part == kForcedPart) continue; // the chosen blocks belong to the same branch
    if (part == kCompressedPart && chooses) share_compressed(shared, cta, last, attention, p);
    leave(shared,
          part == kCompressedPart ? kCompressed
          : part == kWindowPart   ? kWindowed
                                  : kSelected,
          had_step, attention);
    if (had_step) attention.clear();
    had_step = false;
    if (part != kCompressedPart) continue;
    if (warp == kLastWarp) load_gates(shared, step, cta);
    if (chooses && warp < Shared<1>::kChoosers) choose_blocks(shared, cta, step.heads);
  }
  if (warp == kLastWarp) // it has no more steps than any other warp
    write_indices(step.indices + static_cast<int64_t>(cta.kv_head) * kSlots, shared.taken,
                  cta.length);
  meet_cta();
  write_alone(shared, step, cta);
}

} // namespace nsa::kernels::decode
