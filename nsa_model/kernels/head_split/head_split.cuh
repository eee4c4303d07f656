#pragma once
// What one thread of the head split does. Compiles for the host too, where a test runs every thread
// in turn.
//
// A thread owns the vectors (v, v + half) of up to heads / groups neighbouring heads of a token: a
// group's queries, or as many heads of the sets behind them.

#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/head_split/head_split.h"

namespace nsa::kernels {

struct HeadChunk {
  int64_t token;
  int first, end; // heads of the joined row
  int group;      // of queries; -1 for a chunk of sets
  int offset;     // of the vector in the first half of a head
};

__host__ __device__ inline int heads_a_group(const HeadLayout& layout) {
  return layout.heads / layout.groups;
}
__host__ __device__ inline int joined_heads(const HeadLayout& layout) {
  return layout.heads + layout.sets * layout.groups;
}
__host__ __device__ inline int chunks_a_token(const HeadLayout& layout) {
  const int width = heads_a_group(layout);
  return layout.groups + (layout.sets * layout.groups + width - 1) / width;
}
__host__ __device__ inline int vectors_a_half(const HeadLayout& layout) {
  return layout.head_dim / 2 / kVector;
}
__host__ __device__ inline int64_t head_split_threads(const HeadLayout& layout) {
  return layout.tokens * chunks_a_token(layout) * vectors_a_half(layout);
}

__host__ __device__ inline HeadChunk head_chunk(const HeadLayout& layout, int64_t thread) {
  const int vectors = vectors_a_half(layout), chunks = chunks_a_token(layout);
  const int width = heads_a_group(layout);
  const int chunk = static_cast<int>(thread / vectors % chunks);
  const int end = (chunk + 1) * width, all = joined_heads(layout);
  return {thread / vectors / chunks, chunk * width, end < all ? end : all,
          chunk < layout.groups ? chunk : -1, static_cast<int>(thread % vectors) * kVector};
}

// Where head `head` of a joined row lies in q (set -1) or in one of the sets.
struct HeadPlace {
  int set;
  int64_t offset;
};
__host__ __device__ inline HeadPlace head_place(const HeadLayout& layout, int64_t token, int head) {
  if (head < layout.heads) return {-1, (token * layout.heads + head) * layout.head_dim};
  const int behind = head - layout.heads;
  return {behind / layout.groups,
          (token * layout.groups + behind % layout.groups) * layout.head_dim};
}

struct Turn {
  Eight cos, sin;
};
__host__ __device__ inline Turn turn_of(const HeadLayout& layout, const HeadChunk& chunk) {
  const int64_t row = layout.table_per_token ? chunk.token : chunk.token % layout.sequence;
  const int64_t offset = row * (layout.head_dim / 2) + chunk.offset;
  Turn turn = {};
  accumulate(turn.cos, layout.cos + offset, 1.0f);
  accumulate(turn.sin, layout.sin + offset, 1.0f);
  return turn;
}
// sign -1 turns back, which is the gradient of a rotation.
__host__ __device__ inline void rotate(Eight& first, Eight& second, const Turn& turn, float sign) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float a = first.values[i], b = second.values[i];
    const float c = turn.cos.values[i], s = sign * turn.sin.values[i];
    first.values[i] = a * c - b * s;
    second.values[i] = b * c + a * s;
  }
}

inline constexpr int kHeadsInFlight = 3; // heads whose loads are under way before the first store

__host__ __device__ inline void split_chunk(const HeadSplitParams& params, int64_t thread) {
  const HeadLayout& layout = params.layout;
  const HeadChunk chunk = head_chunk(layout, thread);
  const int half = layout.head_dim / 2;
  const Turn turn = turn_of(layout, chunk);
  const __nv_bfloat16* row =
      params.joined + chunk.token * joined_heads(layout) * layout.head_dim + chunk.offset;
  Eight first_sum = {}, second_sum = {};
  for (int head = chunk.first; head < chunk.end; head += kHeadsInFlight) {
    Eight first[kHeadsInFlight] = {}, second[kHeadsInFlight] = {};
#pragma unroll
    for (int i = 0; i < kHeadsInFlight; ++i) {
      if (head + i >= chunk.end) continue;
      accumulate(first[i], row + (head + i) * layout.head_dim, 1.0f);
      accumulate(second[i], row + (head + i) * layout.head_dim + half, 1.0f);
    }
#pragma unroll
    for (int i = 0; i < kHeadsInFlight; ++i) {
      if (head + i >= chunk.end) continue;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        first_sum.values[j] += first[i].values[j];
        second_sum.values[j] += second[i].values[j];
      }
      const HeadPlace place = head_place(layout, chunk.token, head + i);
      if (place.set < layout.rotated) rotate(first[i], second[i], turn, 1.0f);
      __nv_bfloat16* target =
          (place.set < 0 ? params.q : params.set[place.set]) + place.offset + chunk.offset;
      store(target, first[i]);
      store(target + half, second[i]);
    }
  }
  if (params.mean == nullptr || chunk.group < 0) return;
  const float share = 1.0f / static_cast<float>(heads_a_group(layout));
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    first_sum.values[j] *= share;
    second_sum.values[j] *= share;
  }
  __nv_bfloat16* mean =
      params.mean + (chunk.token * layout.groups + chunk.group) * layout.head_dim + chunk.offset;
  store(mean, first_sum);
  store(mean + half, second_sum);
}

__host__ __device__ inline void join_chunk(const HeadSplitBackwardParams& params, int64_t thread) {
  const HeadLayout& layout = params.layout;
  const HeadChunk chunk = head_chunk(layout, thread);
  const int half = layout.head_dim / 2;
  const Turn turn = turn_of(layout, chunk);
  __nv_bfloat16* row =
      params.d_joined + chunk.token * joined_heads(layout) * layout.head_dim + chunk.offset;
  Eight first_mean = {}, second_mean = {};
  if (params.d_mean != nullptr && chunk.group >= 0) {
    const float share = 1.0f / static_cast<float>(heads_a_group(layout));
    const __nv_bfloat16* mean = params.d_mean +
                                (chunk.token * layout.groups + chunk.group) * layout.head_dim +
                                chunk.offset;
    accumulate(first_mean, mean, share);
    accumulate(second_mean, mean + half, share);
  }
  for (int head = chunk.first; head < chunk.end; head += kHeadsInFlight) {
    Eight first[kHeadsInFlight] = {}, second[kHeadsInFlight] = {};
#pragma unroll
    for (int i = 0; i < kHeadsInFlight; ++i) {
      if (head + i >= chunk.end) continue;
      const HeadPlace place = head_place(layout, chunk.token, head + i);
      const __nv_bfloat16* source =
          (place.set < 0 ? params.d_q : params.d_set[place.set]) + place.offset + chunk.offset;
      accumulate(first[i], source, 1.0f);
      accumulate(second[i], source + half, 1.0f);
    }
#pragma unroll
    for (int i = 0; i < kHeadsInFlight; ++i) {
      if (head + i >= chunk.end) continue;
      const HeadPlace place = head_place(layout, chunk.token, head + i);
      if (place.set < layout.rotated) rotate(first[i], second[i], turn, -1.0f);
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        first[i].values[j] += first_mean.values[j];
        second[i].values[j] += second_mean.values[j];
      }
      store(row + (head + i) * layout.head_dim, first[i]);
      store(row + (head + i) * layout.head_dim + half, second[i]);
    }
  }
}

} // namespace nsa::kernels
