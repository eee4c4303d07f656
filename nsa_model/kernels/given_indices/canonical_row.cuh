#pragma once
// Converts a row of given block indices to the form that the kernels need. It compiles for the host
// too, where a test compares it with a set.

#include <climits>
#include <cstdint>

#include "nsa_model/kernels/common/shape.h"

namespace nsa::kernels {

// Bitonic sort (Batcher 1968), ascending. Every index is known at compile time, so a row stays in
// registers.
__host__ __device__ inline void sort_row(int32_t (&row)[kSlots]) {
  for (int size = 2; size <= kSlots; size *= 2) {
    for (int step = size / 2; step > 0; step /= 2) {
      for (int i = 0; i < kSlots; ++i) {
        const int other = i ^ step;
        if (other < i) continue;
        const int32_t low = row[i] < row[other] ? row[i] : row[other];
        const int32_t high = row[i] < row[other] ? row[other] : row[i];
        row[i] = (i & size) == 0 ? low : high;
        row[other] = (i & size) == 0 ? high : low;
      }
    }
  }
}

// Keeps the blocks that a token of block `own` sees. Blocks below 0 or above `own` are removed, and
// every other one is kept once, ascending, followed by -1.
__host__ __device__ inline void canonical_row(int32_t (&row)[kSlots], int own) {
  constexpr int32_t kNone = INT32_MAX;
  for (int32_t& block : row)
    block = block < 0 || block > own ? kNone : block;
  sort_row(row);
  for (int i = kSlots - 1; i > 0; --i)
    row[i] = row[i] == row[i - 1] ? kNone : row[i];
  sort_row(row);
  for (int32_t& block : row)
    block = block == kNone ? -1 : block;
}

} // namespace nsa::kernels
