#pragma once
// How the work of one decoding step is divided among the CTAs of a cluster. The grid is fixed by
// the longest sequence that the caches hold; how many keys there are is read on the device, so that
// a recorded graph serves every length. Pure functions, host and device.

#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/decode/config.h"

#include <cstddef>
#include <cstdint>

namespace nsa::kernels::decode {

struct Plan {
  // Of one sequence and KV group: a cluster, 2^log_ctas CTAs, up to 16. Divisions by it are shifts.
  int log_ctas = 0;
  __host__ __device__ constexpr int ctas() const { return 1 << log_ctas; }
  // Whether the block sums lie in the workspace, because shared memory has no room for them.
  bool sums_in_workspace = false;
};

__host__ __device__ constexpr int steps_of(int keys) {
  return (keys + Tile::kStepKeys - 1) / Tile::kStepKeys;
}
// Compressed tokens that the newest of `length` tokens sees.
__host__ __device__ constexpr int compressed_keys(int length) {
  return length > 0 ? visible_compressed(length - 1) : 0;
}
__host__ __device__ constexpr int window_keys(int length) {
  return length < kWindow ? length : kWindow;
}
// Block of the newest token.
__host__ __device__ constexpr int own_block(int length) {
  return length > 0 ? (length - 1) / kBlock : 0;
}
// Whether blocks are chosen by score; else all causal blocks are selected.
__host__ __device__ constexpr bool chooses_blocks(int length) {
  return own_block(length) >= kSlots;
}
__host__ __device__ constexpr int selected_count(int length) {
  return chooses_blocks(length) ? kSlots : own_block(length) + 1;
}

struct Range {
  int begin = 0, end = 0;
};
// Part `part` of `count` things in 2^log_parts parts whose sizes differ by one at most.
__host__ __device__ constexpr Range even_part(int count, int log_parts, int part) {
  return {count * part >> log_parts, count * (part + 1) >> log_parts};
}
// The part that has thing `i`.
__host__ __device__ constexpr int part_of(int count, int log_parts, int i) {
  return (((i + 1) << log_parts) - 1) / count;
}

// Row of a window cache of `rows` rows in which position `first` + i lies; `first_row` is that of
// `first`, and i is less than `rows`.
__host__ __device__ constexpr int ring_row(int first_row, int i, int rows) {
  return first_row + i < rows ? first_row + i : first_row + i - rows;
}

// What a compressed step leaves of a head: the sums of its blocks, the probability of its last key,
// and the reference of both.
inline constexpr int kStepWords = kStepBlocks + 2;

// Of a CTA at most, with `tokens` in the cache.
__host__ __device__ constexpr int steps_of_cta(const Plan& plan, int tokens) {
  return (steps_of(compressed_keys(tokens)) + plan.ctas() - 1) >> plan.log_ctas;
}
constexpr std::size_t key_bytes(const Plan& plan, int tokens) {
  return static_cast<std::size_t>(steps_of_cta(plan, tokens)) * kStepBlocks * sizeof(int);
}
constexpr std::size_t sum_bytes(const Plan& plan, int heads, int tokens) {
  return static_cast<std::size_t>(steps_of_cta(plan, tokens)) * static_cast<std::size_t>(heads) *
         kStepWords * sizeof(float);
}
constexpr std::size_t workspace_bytes(const Plan& plan, int kv_heads, int heads, int tokens) {
  if (!plan.sums_in_workspace) return 0;
  return static_cast<std::size_t>(kv_heads) * static_cast<std::size_t>(plan.ctas()) *
         sum_bytes(plan, heads, tokens);
}

inline constexpr int kLongTokens = 1 << 16;

struct Device {
  int multiprocessors = 132;
  int most_ctas = Tile::kMostCtas; // of a cluster; 1 before Hopper
  std::size_t shared_bytes = 0;    // that a CTA may have, with Tile::kResident on a multiprocessor
};
// `kv_heads`: of all sequences together. `tokens`: the longest sequence. `fixed_bytes`: of shared
// memory, whatever the length.
constexpr Plan make_plan(int kv_heads, int heads, int tokens, std::size_t fixed_bytes,
                         const Device& device) {
  Plan plan;
  // Two CTAs lie on a multiprocessor. Larger clusters find less room, and more of them cost more
  // than they bring; 16 CTAs pay for the longest caches alone (docs/lab: decode-in-one-launch).
  const auto fits = [&](int ctas, int most) {
    return ctas <= device.most_ctas && ctas * kv_heads <= most;
  };
  const int half = device.multiprocessors / 2;
  plan.log_ctas = fits(16, half) && tokens > kLongTokens ? 4
                  : fits(8, half)                        ? 3
                  : fits(4, 2 * half)                    ? 2
                  : fits(2, 4 * half)                    ? 1
                                                         : 0;
  plan.sums_in_workspace =
      fixed_bytes + key_bytes(plan, tokens) + sum_bytes(plan, heads, tokens) > device.shared_bytes;
  return plan;
}

} // namespace nsa::kernels::decode
