#pragma once
// The work of a CTA (decode.cu). Tests compile it for the host.

#include "nsa_model/kernels/decode/choose_blocks.cuh"

namespace nsa::kernels::decode {

// The parts of a CTA's work, in this order. A warp's steps of a part are begin, begin + stride, ..
enum Part { kCompressedPart, kWindowPart, kForcedPart, kChosenPart, kParts };
struct Steps {
  int begin = 0, end = 0, stride = 1;
};

// Steps of warp `warp`. If blocks are chosen, the warps that do not choose attend to the window and
// to the forced blocks meanwhile. They share the steps of both in turn.
template <int kHalves>
__device__ __forceinline__ Steps steps_of_part(int part, const Cta& cta, int warp) {
  constexpr int kWarps = Tile::kWarps<kHalves>;
  constexpr int kChoosers = Tile::kChoosers<kHalves>;
  const int of_cluster = cta.rank * kWarps + warp;
  const bool chooses = chooses_blocks(cta.length);
  if (part == kCompressedPart) return {cta.compressed.begin + warp, cta.compressed.end, kWarps};
  if (part == kChosenPart)
    return {of_cluster, kBlockSteps * (chooses ? kPickedBlocks : selected_count(cta.length)),
            kWarps << cta.log_ctas};
  const int window = steps_of(window_keys(cta.length));
  const int others = chooses ? kWarps - kChoosers : kWarps;
  const int first = warp - (kWarps - others);
  if (first < 0 || (part == kForcedPart && (!chooses || cta.length <= 0))) return {};
  const int begin = cta.rank * others + first;
  const int stride = others << cta.log_ctas; // a power of two
  if (part == kWindowPart) return {begin, window, stride};
  const int past = begin < window ? (window - begin + stride - 1) & -stride : 0;
  return {begin + past - window, kBlockSteps * kForcedBlocks, stride};
}

// Synchronises all threads of the CTA. As in meet_warps(), the lanes synchronise first.
__device__ __forceinline__ void meet_cta() {
  __syncwarp();
  __syncthreads();
}

// Keys of one step.
struct Source {
  const __nv_bfloat16 *k, *v; // keys and values of the KV head
  int first, rows;            // row of the first key; rows of a ring
  int count;                  // number of keys, up to kStepKeys; 0 or less: none
};
__device__ __forceinline__ Source source_of(const DecodeParams& step, const Cta& cta, int part,
                                            int i, const int* taken) {
  const int first = i * Tile::kStepKeys;
  const auto of = [&](const __nv_bfloat16* k, const __nv_bfloat16* v, int rows, int row, int ring,
                      int count) -> Source {
    const int64_t begin = static_cast<int64_t>(cta.kv_head) * rows * kHeadDim;
    return {k + begin, v + begin, row, ring, min(count, Tile::kStepKeys)};
  };
  constexpr int kNoRing = INT_MAX;
  if (part == kCompressedPart)
    return of(step.k_compressed, step.v_compressed, step.compressed_rows, first, kNoRing,
              compressed_keys(cta.length) - first);
  if (part == kWindowPart) {
    const int keys = window_keys(cta.length);
    const int row = (cta.length - keys + first) % step.window_rows;
    return of(step.k_window, step.v_window, step.window_rows, row, step.window_rows, keys - first);
  }
  int block = i / kBlockSteps;
  if (part == kForcedPart) {
    block = block == 0 ? 0 : cta.own - 2 + block;
  } else if (chooses_blocks(cta.length)) {
    block = taken[block];
  }
  const int row = block * kBlock + i % kBlockSteps * Tile::kStepKeys;
  return of(step.k_selected, step.v_selected, step.tokens, row, kNoRing, cta.length - row);
}

// Prefetches a step's keys and values, so that they arrive while the warp attends to others. One
// warp calls it.
__device__ __forceinline__ void prefetch(const Source& source) {
  const int rows = min(source.count, source.rows - source.first);
  if (rows <= 0 || threadIdx.x % kWarpThreads >= 2) return;
  const __nv_bfloat16* const begin = threadIdx.x % kWarpThreads == 0 ? source.k : source.v;
  prefetch(begin + source.first * kHeadDim, rows * kHeadDim * static_cast<int>(sizeof(*begin)));
}

__device__ __forceinline__ void load(StepKeys& keys, const Source& source) {
  const auto row = [&](int key) { return ring_row(source.first, key, source.rows) * kHeadDim; };
  keys.load(source.k, source.v, row, source.count);
}

// Stores a warp's result of a branch. If the warp had no step, O is not stored.
template <int kHalves>
__device__ __forceinline__ void leave(Shared<kHalves>& shared, int branch, bool had_step,
                                      const WarpAttention<kHalves>& attention) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpThreads;
  const int quad = thread % 4;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    const int row = thread % kWarpThreads / 4 + kHalfHeads * half;
    const float sum = quad_sum(attention.sum[half]);
    if (quad == 0) shared.partial[branch][warp][row] = {attention.reference[half], sum};
    if (!had_step) continue;
#pragma unroll
    for (int i = 0; i < kLaneDims; i += 4) {
      const float4 four = {attention.out(half, i), attention.out(half, i + 1),
                           attention.out(half, i + 2), attention.out(half, i + 3)};
      *reinterpret_cast<float4*>(&shared.out[branch][warp][row][out_dimension(quad, i)]) = four;
    }
  }
}

// Merges the warps' results of every branch. CTA r of the cluster gets the dimensions from 64 r /
// ctas on.
template <int kHalves>
__device__ __forceinline__ void send_results(Shared<kHalves>& shared, const Cta& cta, int heads) {
  constexpr int kWarps = Shared<kHalves>::kWarps;
  constexpr int kRows = Shared<kHalves>::kRows;
  constexpr int kThreads = Tile::kThreads<kHalves>;
  constexpr int kColumns = 8; // columns of a thread
  constexpr int kItems = kBranches * kRows * kHeadDim / kColumns;
  const int dims = kHeadDim >> cta.log_ctas;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kItems; i += kThreads) {
    const int place = i % (kHeadDim / kColumns);
    const int row = i / (kHeadDim / kColumns) % kRows;
    const int branch = i / (kHeadDim / kColumns) / kRows;
    if (row >= heads) continue;
    Partial of_warps[kWarps];
    Partial total = {kNoReference, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      of_warps[w] = shared.partial[branch][w][row];
      total.reference = max(total.reference, of_warps[w].reference);
    }
    float4 out[2] = {}; // dimensions 4 place .. and 32 + 4 place ..
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (of_warps[w].reference == kNoReference) continue; // the warp had no step
      const float scale = power_of_two(of_warps[w].reference - total.reference);
      total.sum = fmaf(scale, of_warps[w].sum, total.sum);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float4 part = *reinterpret_cast<const float4*>(
            &shared.out[branch][w][row][kHeadDim / 2 * n + 4 * place]);
        out[n].x = fmaf(scale, part.x, out[n].x);
        out[n].y = fmaf(scale, part.y, out[n].y);
        out[n].z = fmaf(scale, part.z, out[n].z);
        out[n].w = fmaf(scale, part.w, out[n].w);
      }
    }
    const int at = (cta.rank * kBranches + branch) * kRows + row;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int column = kHeadDim / 2 * n + 4 * place;
      send(reinterpret_cast<float4*>(&shared.results[at * dims + (column & (dims - 1))]), out[n],
           column >> (6 - cta.log_ctas), shared.results_done);
    }
    static_assert(kHeadDim == 1 << 6);
    // The threads of a row each send to one or two CTAs.
    for (int to = place; to < cta.ctas(); to += kHeadDim / kColumns)
      send(&shared.of_ctas[cta.rank][branch][row], total, to, shared.results_done);
  }
  arrive(shared.results_done);
}

// Loads the gates of the KV head's heads early, because they come from memory. One warp calls it.
template <int kHalves>
__device__ __forceinline__ void load_gates(Shared<kHalves>& shared, const DecodeParams& step,
                                           const Cta& cta) {
  const int lane = static_cast<int>(threadIdx.x % kWarpThreads);
  const int branch = lane % 4;
  const int group = cta.kv_head % step.groups;
  const float* const gates = step.gates + static_cast<int64_t>(cta.kv_head / step.groups) *
                                              step.gates_of_token * kBranches;
  if (branch >= kBranches) return;
#pragma unroll 1
  for (int row = lane / 4; row < step.heads; row += kWarpThreads / 4) {
    const int gate = step.gates_of_token == step.groups ? group : group * step.heads + row;
    shared.gates[branch][row] = gates[gate * kBranches + branch];
  }
}

// Computes the factor of each CTA's part of a branch, after all have sent. One lane computes one
// factor.
template <int kHalves>
__device__ __forceinline__ void weigh_ctas(Shared<kHalves>& shared, const Cta& cta, int heads) {
  constexpr int kThreads = Tile::kThreads<kHalves>;
  const int from = static_cast<int>(threadIdx.x) & (cta.ctas() - 1);
#pragma unroll 1
  for (int first = 0; first < kBranches * heads; first += kThreads >> cta.log_ctas) {
    const int i =
        min(first + (static_cast<int>(threadIdx.x) >> cta.log_ctas), kBranches * heads - 1);
    const int branch = i % kBranches;
    const int row = i / kBranches;
    const Partial partial = shared.of_ctas[from][branch][row];
    int reference = partial.reference;
#pragma unroll
    for (int distance = Tile::kMostCtas / 2; distance > 0; distance /= 2) {
      const int other = __shfl_xor_sync(~0u, reference, distance);
      if (distance < cta.ctas()) reference = max(reference, other);
    }
    const float scale = power_of_two(partial.reference - reference);
    float sum = scale * partial.sum;
#pragma unroll
    for (int distance = Tile::kMostCtas / 2; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(~0u, sum, distance);
      if (distance < cta.ctas()) sum += other;
    }
    // A branch without visible keys gives 0.
    shared.factor[from][branch][row] = sum > 0 ? scale * shared.gates[branch][row] / sum : 0.0f;
  }
}

// Adds the branches, multiplied by their gates, for this CTA's dimensions. In a cluster of more
// than two CTAs, ctas / 2 neighbouring lanes add up a pair of dimensions together.
template <int kHalves>
__device__ __forceinline__ void write_out(Shared<kHalves>& shared, const DecodeParams& step,
                                          const Cta& cta) {
  constexpr int kThreads = Tile::kThreads<kHalves>;
  constexpr int kRows = Shared<kHalves>::kRows;
  const int heads = step.heads;
  weigh_ctas(shared, cta, heads);
  meet_cta();
  const int dims = kHeadDim >> cta.log_ctas;
  const int log_lanes = max(cta.log_ctas - 1, 0);
  const int log_pairs = 5 - cta.log_ctas; // log2 of the pairs of dimensions
  static_assert(kHeadDim / 2 == 1 << 5);
  const int parts = kBranches << cta.log_ctas;
  const int items = heads << (log_pairs + log_lanes);
#pragma unroll 1
  for (int first = 0; first < items; first += kThreads) {
    const int i = min(first + static_cast<int>(threadIdx.x), items - 1);
    const int lane = i & ((1 << log_lanes) - 1);
    const int column = (i >> log_lanes & ((1 << log_pairs) - 1)) * 2;
    const int row = i >> (log_lanes + log_pairs);
    float2 out = {};
#pragma unroll 6
    for (int part = lane; part < parts; part += 1 << log_lanes) {
      const float factor = (&shared.factor[0][0][0])[part * kRows + row];
      const float2 two =
          *reinterpret_cast<const float2*>(&shared.results[(part * kRows + row) * dims + column]);
      out.x = fmaf(factor, two.x, out.x);
      out.y = fmaf(factor, two.y, out.y);
    }
#pragma unroll
    for (int distance = Tile::kMostCtas / 4; distance > 0; distance /= 2) {
      const float x = __shfl_xor_sync(~0u, out.x, distance);
      const float y = __shfl_xor_sync(~0u, out.y, distance);
      if (distance < 1 << log_lanes) {
        out.x += x;
        out.y += y;
      }
    }
    const int64_t to =
        (static_cast<int64_t>(cta.kv_head) * heads + row) * kHeadDim + cta.rank * dims + column;
    if (lane == 0) *reinterpret_cast<uint32_t*>(step.out + to) = pack_bf16(out.x, out.y);
  }
}

// Returns the work of a CTA, and the address of the variable part of its shared memory or of its
// workspace.
template <int kHalves>
__device__ __forceinline__ Cta cta_of(const DecodeParams& step, int unit, Shared<kHalves>& shared) {
  Cta cta{};
  cta.log_ctas = step.plan.log_ctas;
  cta.kv_head = unit >> cta.log_ctas;
  cta.rank = unit & (cta.ctas() - 1);
  cta.length = min(step.lengths[cta.kv_head / step.groups], step.tokens);
  cta.own = own_block(cta.length);
  cta.compressed = even_part(steps_of(compressed_keys(cta.length)), cta.log_ctas, cta.rank);
  const int most = steps_of_cta(step.plan, step.tokens);
  cta.keys = reinterpret_cast<int*>(&shared + 1);
  cta.sums = step.plan.sums_in_workspace
                 ? static_cast<float*>(step.workspace) +
                       static_cast<int64_t>(unit) * most * step.heads * kStepWords
                 : reinterpret_cast<float*>(cta.keys + key_places(most));
  return cta;
}

// Initialises the signals of the CTA, before its threads meet or the cluster begins.
template <int kHalves>
__device__ __forceinline__ void prepare(Shared<kHalves>& shared, const Cta& cta, int heads) {
  using Own = Shared<kHalves>;
  if (threadIdx.x == 0) {
    // A CTA alone sends itself nothing during the choice of blocks.
    const int before = cta.compressed.begin > 0 && cta.compressed.begin < cta.compressed.end;
    const int partials = cta.log_ctas == 0 ? 0 : cta.ctas() * Own::kWarps + before;
    expect(shared.compressed_done, Own::kWarps,
           static_cast<int>(sizeof(Partial)) * Own::kRows * partials);
    const int words = cta.log_ctas == 0    ? 0
                      : cta.compares_all() ? steps_of(compressed_keys(cta.length)) * kStepBlocks
                                           : 2 * cta.ctas() * kPickedBlocks;
    expect(shared.lists_done, Own::kChoosers, static_cast<int>(sizeof(int)) * words);
    expect(shared.blocks_taken, Own::kChoosers, 0);
    expect(shared.results_done, Own::kWarps,
           kBranches * heads *
               (kHeadDim * static_cast<int>(sizeof(float)) +
                (static_cast<int>(sizeof(Partial)) << cta.log_ctas)));
  }
  __syncwarp();
}

// Smaller clusters do not prefetch: so many of them share the GPU that memory is busy anyway.
inline constexpr int kPrefetchLogCtas = 2;

// Prefetches the window and the forced blocks during other work. One warp calls it.
template <int kHalves>
__device__ __forceinline__ void prefetch_known(const DecodeParams& step, const Cta& cta, int warp) {
#pragma unroll 1
  for (int part = kWindowPart; part <= kForcedPart; ++part) {
    const Steps steps = steps_of_part<kHalves>(part, cta, warp);
#pragma unroll 1
    for (int i = steps.begin; i < steps.end; i += steps.stride)
      prefetch(source_of(step, cta, part, i, nullptr));
  }
}

template <int kHalves>
__device__ __forceinline__ void decode_cta(const DecodeParams& step, int unit,
                                           Shared<kHalves>& shared) {
  constexpr int kWarps = Shared<kHalves>::kWarps;
  constexpr int kChoosers = Shared<kHalves>::kChoosers;
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const Cta cta = cta_of(step, unit, shared);
  prepare(shared, cta, step.heads);
  begin_cluster();
  const bool chooses = chooses_blocks(cta.length);
  WarpAttention<kHalves> attention(
      step.q + static_cast<int64_t>(cta.kv_head) * step.heads * kHeadDim, step.heads, step.scale);
  float p[kHalves][kLaneKeys];
  bool had_step = false; // whether there was a step since the last stored result
#pragma unroll 1
  for (int part = kCompressedPart; part < kParts; ++part) {
    if (part == kChosenPart && chooses) await(shared.blocks_taken);
    const Steps steps = steps_of_part<kHalves>(part, cta, warp);
    int last = -1;
#pragma unroll 1
    for (int i = steps.begin; i < steps.end; i += steps.stride) {
      const Source source = source_of(step, cta, part, i, shared.taken);
      if ((part == kCompressedPart || part == kChosenPart) && i + steps.stride < steps.end)
        prefetch(source_of(step, cta, part, i + steps.stride, shared.taken));
      if (source.count <= 0) continue;
      StepKeys keys;
      load(keys, source);
      attention.attend(keys, source.count, p);
      last = i;
      had_step = true;
      if (part == kCompressedPart && chooses) write_block_sums(cta, step.heads, i, attention, p);
    }
    if (part == kForcedPart) continue; // the chosen blocks belong to the same branch
    if (part == kCompressedPart) {
      __syncwarp();
      await_cluster();
      // With many sequences, the compressed keys of others are in flight, and the window would
      // displace them in L2.
      if (warp >= kChoosers && cta.log_ctas >= kPrefetchLogCtas)
        prefetch_known<kHalves>(step, cta, warp);
      if (chooses) share_compressed(shared, cta, last, attention, p);
    }
    leave(shared,
          part == kCompressedPart ? kCompressed
          : part == kWindowPart   ? kWindowed
                                  : kSelected,
          had_step, attention);
    if (had_step) attention.clear();
    had_step = false;
    if (part != kCompressedPart) continue;
    if (warp == kWarps - 1) load_gates(shared, step, cta);
    if (chooses && warp < kChoosers) choose_blocks(shared, cta, step.heads);
  }
  meet_cta();
  send_results(shared, cta, step.heads);
  await(shared.results_done);
  write_out(shared, step, cta);
  if (cta.rank == 0 && warp == kWarps - 1)
    write_indices(step.indices + static_cast<int64_t>(cta.kv_head) * kSlots, shared.taken,
                  cta.length);
}

} // namespace nsa::kernels::decode
