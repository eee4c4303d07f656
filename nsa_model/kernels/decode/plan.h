#pragma once
// How the work of one decoding step is divided among the CTAs of a cluster. The longest sequence
// that the caches hold determines the grid. The number of keys is read on the device, so a recorded
// graph serves every length. Pure functions, host and device.

#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/decode/config.h"

#include <cstddef>
#include <cstdint>

namespace nsa::kernels::decode {

struct Plan {
  // log2 of the CTAs in the cluster of one sequence and KV group, up to 16 CTAs. So divisions by
  // their number are shifts.
  int log_ctas = 0;
  __host__ __device__ constexpr int ctas() const { return 1 << log_ctas; }
  // Whether the kernel for a CTA with a multiprocessor to itself runs (alone.cuh).
  bool alone = false;
  // Whether the block sums are in the workspace, because they do not fit shared memory.
  bool sums_in_workspace = false;
};

__host__ __device__ constexpr int steps_of(int keys) {
  return (keys + Tile::kStepKeys - 1) / Tile::kStepKeys;
}
// Number of compressed tokens that the newest of `length` tokens sees.
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
// Whether blocks are chosen by score. Otherwise all causal blocks are selected.
__host__ __device__ constexpr bool chooses_blocks(int length) {
  return own_block(length) >= kSlots;
}
__host__ __device__ constexpr int selected_count(int length) {
  return chooses_blocks(length) ? kSlots : own_block(length) + 1;
}

struct Range {
  int begin = 0, end = 0;
};
// Part `part` of `count` items in 2^log_parts parts whose sizes differ by at most one.
__host__ __device__ constexpr Range even_part(int count, int log_parts, int part) {
  return {count * part >> log_parts, count * (part + 1) >> log_parts};
}
// Returns the part that contains item `i`.
__host__ __device__ constexpr int part_of(int count, int log_parts, int i) {
  return (((i + 1) << log_parts) - 1) / count;
}

// Row of position `first` + i in a window cache of `rows` rows. `first_row` is the row of `first`,
// and i is less than `rows`.
__host__ __device__ constexpr int ring_row(int first_row, int i, int rows) {
  return first_row + i < rows ? first_row + i : first_row + i - rows;
}

// Words that a compressed step stores for a head: the sums of its blocks, the probability of its
// last key, and the reference of both.
inline constexpr int kStepWords = kStepBlocks + 2;

// Largest number of steps of a CTA, with `tokens` in the cache.
__host__ __device__ constexpr int steps_of_cta(const Plan& plan, int tokens) {
  return (steps_of(compressed_keys(tokens)) + plan.ctas() - 1) >> plan.log_ctas;
}
__host__ __device__ constexpr int round_up(int value, int multiple) {
  return (value + multiple - 1) / multiple * multiple;
}
// Up to this many keys are compared pairwise. More are divided into at most so many groups.
inline constexpr int kMostCompared = 128;
// log2 of the keys of a group. The keys of a group are whole loads of four.
__host__ __device__ constexpr int log_group(int keys) {
  if (keys <= kMostCompared) return 0;
  int log = 2;
  while (keys > kMostCompared << log)
    ++log;
  return log;
}
// Places for the keys of the blocks of `steps` steps. The last group is a whole one.
__host__ __device__ constexpr int key_places(int steps) {
  return round_up(steps * kStepBlocks, 1 << log_group(steps * kStepBlocks));
}
constexpr std::size_t key_bytes(const Plan& plan, int tokens) {
  return static_cast<std::size_t>(key_places(steps_of_cta(plan, tokens))) * sizeof(int);
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
  int most_ctas = Tile::kMostCtas; // CTAs of a cluster; 1 before Hopper
  // Shared memory that a CTA may use if Tile::kResident are on a multiprocessor.
  std::size_t shared_bytes = 0;
  std::size_t alone_bytes = 0; // the same for a CTA that is alone on it
};
// `kv_heads`: those of all sequences. `tokens`: length of the longest sequence. `fixed_bytes`:
// shared memory that does not depend on the length.
constexpr Plan make_plan(int kv_heads, int heads, int tokens, std::size_t fixed_bytes,
                         const Device& device) {
  Plan plan;
  // A multiprocessor holds two CTAs. Larger clusters are harder to place, and more CTAs cost more
  // than they save. 16 CTAs are faster only for the longest caches (docs/lab:
  // decode-in-one-launch).
  const auto fits = [&](int ctas, int most) {
    return ctas <= device.most_ctas && ctas * kv_heads <= most;
  };
  const int half = device.multiprocessors / 2;
  plan.log_ctas = fits(16, half) && tokens > kLongTokens ? 4
                  : fits(8, half)                        ? 3
                  : fits(4, 2 * half)                    ? 2
                  : fits(2, 4 * half)                    ? 1
                                                         : 0;
  // With 80 KV heads on 132 multiprocessors two CTAs for each are faster. With 96 it depends on
  // what lies in L2 (docs/lab: 2026-11-28-decode).
  const int all = device.multiprocessors;
  plan.alone = heads <= kHalfHeads && kv_heads <= all && 4 * kv_heads > 3 * all;
  if (plan.alone) plan.log_ctas = 0;
  plan.sums_in_workspace = fixed_bytes + key_bytes(plan, tokens) + sum_bytes(plan, heads, tokens) >
                           (plan.alone ? device.alone_bytes : device.shared_bytes);
  return plan;
}

} // namespace nsa::kernels::decode
