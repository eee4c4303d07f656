#pragma once
// What a CTA of each of the two launches does (decode.cu). Tests compile it for the host.

#include "nsa_model/kernels/decode/choose_blocks.cuh"

namespace nsa::kernels::decode {

// Beside the dynamic shared memory `raw`, which holds the warps' results and then scores.
struct Shared {
  Statistics statistics;
  Choice choice;
  bool is_last;
};

template <int kHalves> constexpr std::size_t first_raw_bytes(int tokens) {
  const std::size_t scores = static_cast<std::size_t>(block_count(tokens)) * sizeof(int);
  return scores > sizeof(WarpResults<kHalves>) ? scores : sizeof(WarpResults<kHalves>);
}
template <int kHalves> constexpr std::size_t second_raw_bytes() {
  return sizeof(WarpResults<kHalves>);
}

template <int kHalves>
__device__ __forceinline__ void first_cta(const Work& work, int unit, float4* raw, Shared& shared) {
  auto& results = *reinterpret_cast<WarpResults<kHalves>*>(raw);
  const DecodeParams& step = work.step;
  const int kv_heads = step.batch * step.groups;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int behind = unit - kv_heads * step.plan.compressed_pieces;
  const bool is_window = behind >= 0;
  const int kv_head =
      is_window ? behind / step.plan.window_pieces : unit / step.plan.compressed_pieces;
  const int length = work.length(kv_head);
  float p[kHalves][kLaneKeys];

  if (is_window) {
    const int piece = behind % step.plan.window_pieces;
    const int keys = window_keys(length);
    const int64_t cache = static_cast<int64_t>(kv_head) * step.window_rows * kHeadDim;
    const int first_row = keys > 0 ? (length - keys) % step.window_rows : 0;
    const Range part = even_part(steps_of(keys), step.plan.window_pieces, piece);
    WarpAttention<kHalves> attention(work.query(kv_head), step.heads, step.scale);
    for (int i = part.begin + warp; i < part.end; i += Tile::kWarps) {
      const int first = i * Tile::kStepKeys;
      const auto row = [&](int key) {
        return ring_row(first_row, first + key, step.window_rows) * kHeadDim;
      };
      attention.attend(step.k_window + cache, step.v_window + cache, row,
                       min(keys - first, Tile::kStepKeys), p);
    }
    write_piece(work, kv_head, step.plan.first_window() + piece, attention, results);
    return;
  }

  const int piece = unit % step.plan.compressed_pieces;
  const int keys = compressed_keys(length);
  const int used = used_pieces(steps_of(keys), step.plan.compressed_pieces);
  if (piece >= used) return;
  const bool chooses = chooses_blocks(length);
  const int64_t cache = static_cast<int64_t>(kv_head) * step.compressed_rows * kHeadDim;
  const Range part = even_part(steps_of(keys), used, piece);
  {
    WarpAttention<kHalves> attention(work.query(kv_head), step.heads, step.scale);
    for (int i = part.begin + warp; i < part.end; i += Tile::kWarps) {
      const int first = i * Tile::kStepKeys;
      const auto row = [&](int key) { return (first + key) * kHeadDim; };
      attention.attend(step.k_compressed + cache, step.v_compressed + cache, row,
                       min(keys - first, Tile::kStepKeys), p);
      if (chooses) write_block_sums(work, kv_head, i, attention, p);
    }
    write_piece(work, kv_head, piece, attention, results);
  }
  if (!chooses) return;
  if (arrives_last(step.arrivals + kv_head, used, shared.is_last))
    choose_blocks<kHalves>(work, kv_head, used, shared.statistics, shared.choice,
                           reinterpret_cast<int*>(raw));
}

// Joins the compressed pieces, and says which blocks are selected where none were chosen.
inline __device__ void join_compressed(const Work& work, int kv_head, int length,
                                       Statistics& statistics) {
  const int thread = static_cast<int>(threadIdx.x);
  const DecodeParams& step = work.step;
  const int heads = step.heads;
  const int used = used_pieces(steps_of(compressed_keys(length)), step.plan.compressed_pieces);
  const int64_t place = work.place(kv_head, step.plan.joined());
  load_statistics(work, kv_head, 0, used, statistics);
  for (int head = thread / 32; head < heads; head += Tile::kWarps) {
    const HeadTotal total = total_of(statistics, heads, 0, used, head);
    weigh(statistics, heads, 0, used, head, total, 1.0f);
    if (thread % 32 == 0) {
      work.sum[place + head] = total.sum;
      work.reference[place + head] = total.reference;
    }
  }
  __syncthreads();
  for (int i = thread; i < heads * kRowVectors; i += Tile::kThreads) {
    const int row = i / kRowVectors;
    const int column = i % kRowVectors * 4;
    *reinterpret_cast<float4*>(work.out + (place + row) * kHeadDim + column) =
        weighted_sum(work, kv_head, 0, used, statistics, row, column);
  }
  if (!chooses_blocks(length) && thread < kSlots)
    step.indices[static_cast<int64_t>(kv_head) * kSlots + thread] =
        thread < selected_count(length) ? thread : -1;
}

// The branches under their gates.
inline __device__ void write_out(const Work& work, int kv_head, Statistics& statistics) {
  const int thread = static_cast<int>(threadIdx.x);
  const DecodeParams& step = work.step;
  const Plan& plan = step.plan;
  const int heads = step.heads;
  const int first = plan.first_window();
  const int places = plan.places() - first;
  // Compressed, selected, window, as gates are.
  const int firsts[3] = {plan.joined() - first, plan.first_selected() - first, 0};
  const int counts[3] = {1, plan.selected_pieces, plan.window_pieces};
  const int heads_of_gate = step.groups * heads / step.gates_of_token;
  const float* gates =
      step.gates + static_cast<int64_t>(kv_head / step.groups) * step.gates_of_token * 3;
  load_statistics(work, kv_head, first, places, statistics);
  for (int i = thread / 32; i < 3 * heads; i += Tile::kWarps) {
    const int branch = i % 3;
    const int head = i / 3;
    const HeadTotal total = total_of(statistics, heads, firsts[branch], counts[branch], head);
    const int gate = (kv_head % step.groups * heads + head) / heads_of_gate;
    // A branch that saw no key gives 0.
    weigh(statistics, heads, firsts[branch], counts[branch], head, total,
          total.sum > 0 ? gates[gate * 3 + branch] / total.sum : 0.0f);
  }
  __syncthreads();
  for (int i = thread; i < heads * kRowVectors; i += Tile::kThreads) {
    const int row = i / kRowVectors;
    const int column = i % kRowVectors * 4;
    const float4 out = weighted_sum(work, kv_head, first, places, statistics, row, column);
    const uint2 packed = {portable::pack_bf16(out.x, out.y), portable::pack_bf16(out.z, out.w)};
    const int64_t to = (static_cast<int64_t>(kv_head) * heads + row) * kHeadDim + column;
    *reinterpret_cast<uint2*>(step.out + to) = packed;
  }
}

template <int kHalves>
__device__ __forceinline__ void second_cta(const Work& work, int unit, float4* raw,
                                           Shared& shared) {
  const DecodeParams& step = work.step;
  const int units = step.plan.selected_pieces + 1; // of a kv head
  const int kv_head = unit / units;
  const int piece = unit % units;
  const int length = work.length(kv_head);
  if (piece == step.plan.selected_pieces) {
    join_compressed(work, kv_head, length, shared.statistics);
  } else {
    constexpr int kBlockSteps = kBlock / Tile::kStepKeys;
    const bool chosen = chooses_blocks(length);
    const int32_t* slots = step.indices + static_cast<int64_t>(kv_head) * kSlots;
    const int64_t cache = static_cast<int64_t>(kv_head) * step.tokens * kHeadDim;
    const Range part =
        even_part(selected_count(length) * kBlockSteps, step.plan.selected_pieces, piece);
    const int warp = static_cast<int>(threadIdx.x) / 32;
    float p[kHalves][kLaneKeys];
    WarpAttention<kHalves> attention(work.query(kv_head), step.heads, step.scale);
    for (int i = part.begin + warp; i < part.end; i += Tile::kWarps) {
      const int block = chosen ? slots[i / kBlockSteps] : i / kBlockSteps;
      const int first = block * kBlock + i % kBlockSteps * Tile::kStepKeys;
      if (first >= length) continue;
      const auto row = [&](int key) { return (first + key) * kHeadDim; };
      attention.attend(step.k_selected + cache, step.v_selected + cache, row,
                       min(length - first, Tile::kStepKeys), p);
    }
    write_piece(work, kv_head, step.plan.first_selected() + piece, attention,
                *reinterpret_cast<WarpResults<kHalves>*>(raw));
  }
  if (arrives_last(step.arrivals + step.batch * step.groups + kv_head, units, shared.is_last))
    write_out(work, kv_head, shared.statistics);
}

} // namespace nsa::kernels::decode
