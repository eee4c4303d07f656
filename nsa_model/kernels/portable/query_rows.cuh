#pragma once
// Common parts of the query-major kernels: their tile, a CTA's query rows, the tiles of keys that
// they see in a branch, the visible keys of a tile, and the launch. Query rows are ordered
// [token][head] through a whole sequence, so no row is wasted for any number of heads.

#include <climits>

#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/mma.cuh"
#include "nsa_model/kernels/portable/keys.h"

namespace nsa::kernels::portable {

// The common part of the tiles of attend and query_gradient. The rest is in their config.h.
struct QueryMajorTile {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarpThreads * kWarps;
  static constexpr int kRows = kWarpRows * kWarps;
  static constexpr int kKeys = kBlock; // keys of a step
  template <int kDim> static constexpr int kKeyStages = kDim == kHeadDim ? 3 : 2;
  template <int kDim> static constexpr int kStageBytes = 2 * kTileBytes<kDim, kKeys>; // K, V
  template <int kDim> static constexpr int kBytes = kKeyStages<kDim> * kStageBytes<kDim>;
};
inline constexpr int kBitmapWords = kMaxPortableSequence / kBlock / 32; // one bit for each block
static_assert(QueryMajorTile::kKeys == kBlock, "a step of the selected branch is one block");
static_assert(kBitmapWords <= QueryMajorTile::kThreads, "a thread lists the blocks of a word");
static_assert(kMaxPortableSequence / kBlock <= 1 << 16, "listed blocks are numbers of 16 bits");

inline int query_tiles(const AttentionShape& shape) { // tiles of one sequence and group
  return (shape.sequence * shape.heads + QueryMajorTile::kRows - 1) / QueryMajorTile::kRows;
}

struct QueryTile {
  int batch;
  int group;
  int first_row;
  int first_token;
  int last_token;

  __device__ QueryTile(const AttentionShape& shape, int tiles) { // the longest rows come first
    const int index = static_cast<int>(blockIdx.x);
    const int kv_heads = shape.batch * shape.groups;
    group = index % kv_heads % shape.groups;
    batch = index % kv_heads / shape.groups;
    first_row = (tiles - 1 - index / kv_heads) * QueryMajorTile::kRows;
    first_token = first_row / shape.heads;
    last_token = min((first_row + QueryMajorTile::kRows - 1) / shape.heads, shape.sequence - 1);
  }
  __device__ int64_t group_row(const AttentionShape& shape, int token) const {
    return (static_cast<int64_t>(batch) * shape.sequence + token) * shape.groups + group;
  }
};

// A thread's two rows.
struct ThreadRows {
  int token[2]; // at least the sequence's length for rows after its end
  int head[2];

  __device__ ThreadRows(const AttentionShape& shape, const QueryTile& tile) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = tile.first_row + static_cast<int>(threadIdx.x) / kWarpThreads * kWarpRows +
                      static_cast<int>(threadIdx.x) % kWarpThreads / 4 + kRowsApart * r;
      token[r] = row / shape.heads;
      head[r] = row % shape.heads;
    }
  }
  __device__ bool valid(const AttentionShape& shape, int r) const {
    return token[r] < shape.sequence;
  }
  // Index of a valid row in tensors [batch, sequence, groups * heads].
  __device__ int64_t query_row(const AttentionShape& shape, const QueryTile& tile, int r) const {
    return tile.group_row(shape, token[r]) * shape.heads + head[r];
  }
  template <int kDim>
  __device__ void load(Fragment (&rows)[kDim / kMmaDepth], const AttentionShape& shape,
                       const QueryTile& tile, const __nv_bfloat16* source) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto* pairs = reinterpret_cast<const uint32_t*>(
          source + query_row(shape, tile, r) * kDim + threadIdx.x % 4 * 2);
#pragma unroll
      for (int i = 0; i < kDim / kGroupColumns; ++i)
        rows[i / 2].r[i % 2 * 2 + r] = valid(shape, r) ? pairs[kGroupColumns / 2 * i] : 0u;
    }
  }
  template <int kDim>
  __device__ void store(__nv_bfloat16* target, const AttentionShape& shape, const QueryTile& tile,
                        const float (&rows)[kDim / kGroupColumns][kGroupFloats],
                        const float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!valid(shape, r)) continue;
      auto* pairs = reinterpret_cast<uint32_t*>(target + query_row(shape, tile, r) * kDim +
                                                threadIdx.x % 4 * 2);
#pragma unroll
      for (int i = 0; i < kDim / kGroupColumns; ++i)
        pairs[kGroupColumns / 2 * i] =
            pack_bf16(rows[i][2 * r] * factor[r], rows[i][2 * r + 1] * factor[r]);
    }
  }
};

// The tiles of keys that a CTA visits: neighbours from the first key that any of its rows sees, or,
// ascending, the blocks that any of its tokens selected.
class KeyTiles {
public:
  struct Shared {
    uint32_t selected[kBitmapWords];              // bitmap of blocks
    int32_t slots[QueryMajorTile::kRows][kSlots]; // slots of the CTA's tokens
    uint16_t blocks[QueryMajorTile::kRows * kSlots];
  };

  // All threads of the CTA call it. `shared` and the tiles may be in use until all threads have
  // arrived.
  __device__ KeyTiles(const AttentionShape& shape, KeyRange key_range, const QueryTile& tile,
                      const int32_t* indices, Shared& shared_lists)
      : range(key_range), first_(0), count_(0), shared_(shared_lists) {
    if (range == KeyRange::kBlocks) {
      unite_blocks(shape, tile, indices);
      return;
    }
    keys = range == KeyRange::kCompressed ? compressed_count(shape.sequence) : shape.sequence;
    const int end =
        range == KeyRange::kCompressed ? visible_compressed(tile.last_token) : tile.last_token + 1;
    if (range == KeyRange::kWindow) first_ = max(0, tile.first_token - kWindow + 1);
    count_ = (end - first_ + QueryMajorTile::kKeys - 1) / QueryMajorTile::kKeys;
    __syncthreads();
  }
  __device__ int count() const { return count_; }
  __device__ int first_key(int i) const {
    return range == KeyRange::kBlocks ? shared_.blocks[i] * kBlock
                                      : first_ + i * QueryMajorTile::kKeys;
  }
  // Starts asynchronous copies of the i-th tile of K and V; rows after the last key are zeros.
  template <int kDim>
  __device__ __forceinline__ void load(uint32_t target, int i, const AttentionShape& shape,
                                       const QueryTile& tile, const Keys& from) const {
    const int first = first_key(i);
    const int64_t start =
        ((static_cast<int64_t>(tile.batch) * keys + first) * shape.groups + tile.group) * kDim;
    const int stride = shape.groups * kDim;
    copy_rows<kDim, QueryMajorTile::kKeys, QueryMajorTile::kThreads>(
        target, from.k + start, from.v + start,
        [&](int row) { return row < keys - first ? row * stride : -1; });
  }
  // A slot of the CTA's tokens, 16 each.
  __device__ int32_t slot(int i) const { return shared_.slots[i / kSlots][i % kSlots]; }

  const KeyRange range;
  int keys = 0; // number of keys in the sequence

private:
  __device__ void unite_blocks(const AttentionShape& shape, const QueryTile& tile,
                               const int32_t* indices) {
    const int thread = static_cast<int>(threadIdx.x);
    keys = shape.sequence;
    __syncthreads();
    if (thread < kBitmapWords) shared_.selected[thread] = 0;
    __syncthreads();
    const int tokens = tile.last_token - tile.first_token + 1;
    for (int i = thread; i < tokens * kSlots; i += QueryMajorTile::kThreads) {
      const int64_t row = tile.group_row(shape, tile.first_token + i / kSlots);
      const int block = indices[row * kSlots + i % kSlots];
      shared_.slots[i / kSlots][i % kSlots] = block;
      if (block >= 0) atomicOr(&shared_.selected[block / 32], 1u << (block % 32));
    }
    __syncthreads();
    int before = 0;
    for (int word = 0; word < kBitmapWords; ++word) {
      const uint32_t bits = shared_.selected[word];
      count_ += __popc(bits);
      if (word < thread) before += __popc(bits);
    }
    if (thread < kBitmapWords) {
      for (uint32_t bits = shared_.selected[thread]; bits != 0; bits &= bits - 1)
        shared_.blocks[before++] = static_cast<uint16_t>(thread * 32 + __ffs(bits) - 1);
    }
    __syncthreads();
  }

  int first_;
  int count_;
  Shared& shared_;
};

// Which keys a thread's two rows see. Tiles must be visited in ascending order.
class RowKeys {
public:
  __device__ RowKeys(const AttentionShape& shape, const QueryTile& tile, const ThreadRows& rows,
                     const KeyTiles& tiles)
      : tiles_(tiles) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = rows.token[r];
      low_[r] = tiles.range == KeyRange::kWindow ? token - kWindow + 1 : 0;
      high_[r] = tiles.range == KeyRange::kCompressed ? visible_compressed(token) - 1 : token;
      slot_[r] = (token - tile.first_token) * kSlots;
      next_[r] = -1;
      if (!rows.valid(shape, r)) {
        high_[r] = -1;
      } else if (listed()) {
        next_[r] = tiles.slot(slot_[r]);
      }
    }
  }
  // Moves to the tile of keys that starts at `key`. Returns false if no row of the warp sees any of
  // them.
  __device__ bool turn_to(int key) {
    bool any = false;
    bool all = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      first_[r] = low_[r];
      if (listed()) {
        if (next_[r] == key / kBlock) {
          next_[r] = ++slot_[r] % kSlots != 0 ? tiles_.slot(slot_[r]) : -1;
        } else {
          first_[r] = INT_MAX;
        }
      }
      any = any || (first_[r] < key + QueryMajorTile::kKeys && high_[r] >= key);
      all = all && first_[r] <= key && high_[r] >= key + QueryMajorTile::kKeys - 1;
    }
    all_ = __all_sync(~0u, all);
    return __any_sync(~0u, any);
  }
  // Replaces the values of the keys from `key` on that a row does not see. A whole tile that all
  // rows see takes one branch, and no value has a branch of its own.
  template <int kColumns>
  __device__ __forceinline__ void replace_unseen(float (&values)[kColumns][kGroupFloats], int key,
                                                 int quad, float value) const {
    if (all_) return;
#pragma unroll
    for (int i = 0; i < kColumns * kGroupFloats; ++i) {
      const int own = key + i / kGroupFloats * kGroupColumns + 2 * quad + i % 2;
      const int r = i / 2 % 2;
      if (own < first_[r] || own > high_[r]) values[i / kGroupFloats][i % kGroupFloats] = value;
    }
  }

private:
  __device__ bool listed() const { return tiles_.range == KeyRange::kBlocks; }

  const KeyTiles& tiles_;
  bool all_ = false;
  int low_[2];
  int high_[2];
  int first_[2] = {};
  int slot_[2]; // slot of next_
  int next_[2]; // the row's first block that has not been visited; -1: none
};

// Checks that the CTAs of a query-major kernel fit.
template <typename Tile, int kDim> constexpr bool check_query_major() {
  static_assert(Tile::template kKeyStages<kDim> >= 2, "the next keys come while these are read");
  static_assert(Tile::template kBytes<kDim> + sizeof(KeyTiles::Shared) <= kLeastSharedBytes,
                "a CTA fits on every GPU from compute capability 8.0");
  static_assert(Tile::kThreads * Tile::template kResident<kDim> <= 1536,
                "threads that a multiprocessor of every such GPU holds");
  return true;
}

// Calls visit(first key, address of K, address of the V that follows it) for each tile of keys. The
// copies of the following tiles overlap with it.
template <int kDim, typename Visit>
__device__ __forceinline__ void walk_keys(const KeyTiles& tiles, const AttentionShape& shape,
                                          const QueryTile& tile, const Keys& from, uint32_t stages,
                                          const Visit& visit) {
  constexpr int kStages = QueryMajorTile::kKeyStages<kDim>;
  const auto load = [&](int i) {
    if (i < tiles.count())
      tiles.load<kDim>(stages + i % kStages * QueryMajorTile::kStageBytes<kDim>, i, shape, tile,
                       from);
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i)
    load(i);
  for (int i = 0; i < tiles.count(); ++i) {
    wait_for_copies<kStages - 2>();
    __syncthreads(); // the tile has arrived, and no thread reads the stage that is filled next
    load(i + kStages - 1);
    const uint32_t k = stages + i % kStages * QueryMajorTile::kStageBytes<kDim>;
    visit(tiles.first_key(i), k, k + kTileBytes<kDim, QueryMajorTile::kKeys>);
  }
  wait_for_copies<0>();
}

// Launches a query-major kernel: a CTA for each tile of rows, times `branches`.
template <int kDim, typename Params>
cudaError_t launch_query_major(void (*kernel)(Params, int), const Params& params, int branches,
                               cudaStream_t stream) {
  constexpr int kBytes = QueryMajorTile::kBytes<kDim>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  const int tiles = query_tiles(params.shape);
  const dim3 grid(static_cast<unsigned>(tiles * params.shape.batch * params.shape.groups),
                  static_cast<unsigned>(branches));
  return launch_kernel(kernel, grid, QueryMajorTile::kThreads, kBytes, stream, params, tiles);
}

} // namespace nsa::kernels::portable
