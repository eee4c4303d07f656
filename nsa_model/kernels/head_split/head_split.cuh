#pragma once
// The work of one thread of the head split. It compiles for the host too, where a test runs every
// thread in turn.
//
// A thread owns the vectors (v, v + half) of up to heads / groups neighbouring heads of a token: a
// group's queries, or as many heads of the sets after them.

#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/head_split/head_split.h"

namespace nsa::kernels {

struct HeadChunk {
  int64_t token;
  int first, end; // range of heads in the joined row
  int group;      // group of queries; -1 for a chunk of sets
  int offset;     // offset of the vector in the first half of a head
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
  return layout.head_dim / 2 / kVectorValues;
}
__host__ __device__ inline int64_t head_split_threads(const HeadLayout& layout) {
  return layout.tokens * chunks_a_token(layout) * vectors_a_half(layout);
}

// Threads are counted in 32 bits, because 64-bit divisions cost three times as much.
__host__ __device__ inline HeadChunk head_chunk(const HeadLayout& layout, uint32_t thread) {
  const auto vectors = static_cast<uint32_t>(vectors_a_half(layout));
  const auto chunks = static_cast<uint32_t>(chunks_a_token(layout));
  const int width = heads_a_group(layout);
  const uint32_t before = thread / vectors;
  const int chunk = static_cast<int>(before % chunks);
  const int end = (chunk + 1) * width, all = joined_heads(layout);
  return {static_cast<int64_t>(before / chunks), chunk * width, end < all ? end : all,
          chunk < layout.groups ? chunk : -1, static_cast<int>(thread % vectors) * kVectorValues};
}

// Position of a head of a joined row: in q (set -1) or in one of the sets.
struct HeadPlace {
  int set, within; // within: index of the head in q or in the set
};
__host__ __device__ inline HeadPlace head_place(const HeadLayout& layout, int head) {
  if (head < layout.heads) return {-1, head};
  const int behind = head - layout.heads;
  return {behind / layout.groups, behind % layout.groups};
}
// Moves to the next head in the joined row.
__host__ __device__ inline void advance(HeadPlace& place, const HeadLayout& layout) {
  if (++place.within < (place.set < 0 ? layout.heads : layout.groups)) return;
  place.within = 0;
  ++place.set;
}
__host__ __device__ inline int64_t offset_of(const HeadPlace& place, const HeadLayout& layout,
                                             int64_t token) {
  const int heads = place.set < 0 ? layout.heads : layout.groups;
  return (token * heads + place.within) * layout.head_dim;
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
// sign -1 rotates back, which is the gradient of a rotation.
__host__ __device__ inline void rotate(Eight& first, Eight& second, const Turn& turn, float sign) {
#pragma unroll
  for (int i = 0; i < kVectorValues; ++i) {
    const float a = first.values[i], b = second.values[i];
    const float c = turn.cos.values[i], s = sign * turn.sin.values[i];
    first.values[i] = a * c - b * s;
    second.values[i] = b * c + a * s;
  }
}

__host__ __device__ inline Eight eight_of(const uint4& vector) {
  Eight eight = {};
  accumulate(eight, vector, 1.0f);
  return eight;
}

// Heads whose loads are in flight before the first store: a group of the M7C 125M.
inline constexpr int kHeadsInFlight = 6;

__host__ __device__ inline void split_chunk(const HeadSplitParams& params, uint32_t thread) {
  const HeadLayout& layout = params.layout;
  const HeadChunk chunk = head_chunk(layout, thread);
  const int half = layout.head_dim / 2;
  const bool wants_mean = params.mean != nullptr && chunk.group >= 0;
  const __nv_bfloat16* row =
      params.joined + chunk.token * joined_heads(layout) * layout.head_dim + chunk.offset;
  HeadPlace place = head_place(layout, chunk.first);
  Eight first_sum = {}, second_sum = {};
  for (int head = chunk.first; head < chunk.end; head += kHeadsInFlight) {
    uint4 first[kHeadsInFlight], second[kHeadsInFlight];
#pragma unroll
    for (int i = 0; i < kHeadsInFlight; ++i) {
      if (head + i >= chunk.end) continue;
      first[i] = load_vector(row + (head + i) * layout.head_dim);
      second[i] = load_vector(row + (head + i) * layout.head_dim + half);
    }
    const Turn turn = turn_of(layout, chunk);
#pragma unroll
    for (int i = 0; i < kHeadsInFlight; ++i) {
      if (head + i >= chunk.end) continue;
      Eight a = eight_of(first[i]), b = eight_of(second[i]);
      if (wants_mean) {
#pragma unroll
        for (int j = 0; j < kVectorValues; ++j) {
          first_sum.values[j] += a.values[j];
          second_sum.values[j] += b.values[j];
        }
      }
      if (place.set < layout.rotated) rotate(a, b, turn, 1.0f);
      __nv_bfloat16* target = (place.set < 0 ? params.q : params.set[place.set]) +
                              offset_of(place, layout, chunk.token) + chunk.offset;
      store(target, a);
      store(target + half, b);
      advance(place, layout);
    }
  }
  if (!wants_mean) return;
  const float weight = 1.0f / static_cast<float>(heads_a_group(layout));
#pragma unroll
  for (int j = 0; j < kVectorValues; ++j) {
    first_sum.values[j] *= weight;
    second_sum.values[j] *= weight;
  }
  __nv_bfloat16* mean =
      params.mean + (chunk.token * layout.groups + chunk.group) * layout.head_dim + chunk.offset;
  store(mean, first_sum);
  store(mean + half, second_sum);
}

__host__ __device__ inline void join_chunk(const HeadSplitBackwardParams& params, uint32_t thread) {
  const HeadLayout& layout = params.layout;
  const HeadChunk chunk = head_chunk(layout, thread);
  const int half = layout.head_dim / 2;
  __nv_bfloat16* row =
      params.d_joined + chunk.token * joined_heads(layout) * layout.head_dim + chunk.offset;
  Eight first_mean = {}, second_mean = {};
  if (params.d_mean != nullptr && chunk.group >= 0) {
    const float weight = 1.0f / static_cast<float>(heads_a_group(layout));
    const __nv_bfloat16* mean = params.d_mean +
                                (chunk.token * layout.groups + chunk.group) * layout.head_dim +
                                chunk.offset;
    accumulate(first_mean, mean, weight);
    accumulate(second_mean, mean + half, weight);
  }
  HeadPlace loaded = head_place(layout, chunk.first), stored = loaded;
  for (int head = chunk.first; head < chunk.end; head += kHeadsInFlight) {
    uint4 first[kHeadsInFlight], second[kHeadsInFlight];
#pragma unroll
    for (int i = 0; i < kHeadsInFlight; ++i) {
      if (head + i >= chunk.end) continue;
      const __nv_bfloat16* source = (loaded.set < 0 ? params.d_q : params.d_set[loaded.set]) +
                                    offset_of(loaded, layout, chunk.token) + chunk.offset;
      first[i] = load_vector(source);
      second[i] = load_vector(source + half);
      advance(loaded, layout);
    }
    const Turn turn = turn_of(layout, chunk);
#pragma unroll
    for (int i = 0; i < kHeadsInFlight; ++i) {
      if (head + i >= chunk.end) continue;
      Eight a = eight_of(first[i]), b = eight_of(second[i]);
      if (stored.set < layout.rotated) rotate(a, b, turn, -1.0f);
#pragma unroll
      for (int j = 0; j < kVectorValues; ++j) {
        a.values[j] += first_mean.values[j];
        b.values[j] += second_mean.values[j];
      }
      store(row + (head + i) * layout.head_dim, a);
      store(row + (head + i) * layout.head_dim + half, b);
      advance(stored, layout);
    }
  }
}

} // namespace nsa::kernels
