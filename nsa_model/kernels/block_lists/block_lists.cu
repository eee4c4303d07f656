// For each block of keys, computes the list of tokens that selected it: lists[b] = (t : b in
// indices[t]), t ascending. It is a counting sort in four launches. A chunk of 512 tokens is a
// bitmap [block][512 bits] in shared memory. Atomic OR sets the bits, so the bitmap does not depend
// on their order. Its population counts are the histogram. The population below a bit is the stable
// rank of an entry. So the lists do not depend on timing.
//
// All threads of a CTA do the same work and arrive at each __syncthreads():
//   function         what the barriers protect
//   fill_bitmap      the bitmap is 0 before the first bit is set, and complete before it is counted
//   scan_pair        warp sums are written before they are added, and read before the next ones
//   scatter_kernel   the ranks of the words are written before a token reads its own
#include "nsa_model/kernels/block_lists/block_lists.h"

#include <algorithm>

#include "nsa_model/kernels/block_lists/config.h"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/common/limits.h"

namespace nsa::kernels {
namespace {

using block_lists::kChunk;
using block_lists::kWords;
constexpr int kThreads = block_lists::Tile::kThreads;
constexpr int kScanThreads = block_lists::Tile::kScanThreads;

int kv_head_count(const AttentionShape& shape) {
  return shape.batch * shape.groups;
}

int chunk_count(const AttentionShape& shape) {
  return (shape.sequence + kChunk - 1) / kChunk;
}

// A CTA processes one chunk of a KV head and some of its blocks.
struct Position {
  int batch;
  int group;
  int chunk;
  int first_block;
  int blocks;
};
__device__ __forceinline__ Position position(const AttentionShape& shape, int blocks) {
  const int first_block = static_cast<int>(blockIdx.z) * kListBlocks;
  return {static_cast<int>(blockIdx.y) / shape.groups, static_cast<int>(blockIdx.y) % shape.groups,
          static_cast<int>(blockIdx.x), first_block, min(blocks - first_block, kListBlocks)};
}

__device__ const int32_t* token_slots(const BlockListsParams& params, const Position& at,
                                      int token) {
  const auto row =
      (static_cast<int64_t>(at.batch) * params.shape.sequence + token) * params.shape.groups;
  return params.indices + (row + at.group) * kSlots;
}

// Slots that one thread processes: half of a token's. It reads their indices at once.
constexpr int kOwn = kChunk * kSlots / kThreads;
static_assert(kSlots % kOwn == 0 && kOwn % 4 == 0);

struct OwnSlots {
  int local;        // index of the token in the chunk
  int slot;         // the first of kOwn slots
  int blocks[kOwn]; // relative to the CTA's first block; negative if empty or another CTA's

  __device__ OwnSlots(const BlockListsParams& params, const Position& at)
      : local(static_cast<int>(threadIdx.x) / (kSlots / kOwn)),
        slot(static_cast<int>(threadIdx.x) % (kSlots / kOwn) * kOwn) {
    const int token = at.chunk * kChunk + local;
    const bool listed = token < params.shape.sequence && token >= params.cut.first_token;
    const int32_t* slots = listed ? token_slots(params, at, token) + slot : nullptr;
#pragma unroll
    for (int i = 0; i < kOwn; i += 4) {
      const int4 four = listed ? *reinterpret_cast<const int4*>(slots + i) : int4{-1, -1, -1, -1};
      blocks[i] = four.x;
      blocks[i + 1] = four.y;
      blocks[i + 2] = four.z;
      blocks[i + 3] = four.w;
    }
#pragma unroll
    for (int& block : blocks) {
      const auto place = static_cast<unsigned>(block - at.first_block);
      block = place < static_cast<unsigned>(at.blocks) ? static_cast<int>(place) : -1;
    }
  }
};

// Index of a block's word in the bitmap. The lanes of a warp read the same word of many blocks. The
// rotation by the block spreads these over all banks instead of two.
__device__ __forceinline__ int word_place(int block, int word) {
  return block * kWords + ((word + (block >> 1)) & (kWords - 1));
}

// Fills the chunk's bitmap [blocks][kWords].
__device__ __forceinline__ void fill_bitmap(const OwnSlots& own, int blocks, uint32_t* bitmap) {
  for (int i = threadIdx.x; i < blocks * kWords; i += kThreads)
    bitmap[i] = 0;
  __syncthreads();
#pragma unroll
  for (const int block : own.blocks) {
    if (block >= 0) atomicOr(&bitmap[word_place(block, own.local / 32)], 1u << (own.local % 32));
  }
  __syncthreads();
}

__global__ void __launch_bounds__(kThreads) count_kernel(BlockListsParams params, int blocks) {
  wait_for_earlier_kernels();
  extern __shared__ __align__(16) uint32_t bitmap[];
  const Position at = position(params.shape, blocks);
  const OwnSlots own(params, at);
  fill_bitmap(own, at.blocks, bitmap);
  int32_t* counts = params.chunk_counts +
                    (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * blocks +
                    at.first_block;
  for (int block = threadIdx.x; block < at.blocks; block += kThreads) {
    int count = 0;
#pragma unroll
    for (int word = 0; word < kWords; ++word)
      count += __popc(bitmap[word_place(block, word)]);
    counts[block] = count;
  }
}

constexpr int kOffsetThreads = 128; // a segment each

// For each segment: turns the counts of its chunks into offsets within the segment and stores the
// total.
__global__ void __launch_bounds__(kOffsetThreads)
    chunk_offsets_kernel(BlockListsParams params, int blocks, int chunks, int segments) {
  wait_for_earlier_kernels();
  const int segment = static_cast<int>(blockIdx.x) * kOffsetThreads + static_cast<int>(threadIdx.x);
  if (segment >= segments) return;
  const int list = segment / blocks;
  const int section = list % params.cut.sections;
  const int first = params.cut.first_chunk(section);
  const int count = params.cut.end_chunk(section) - first;
  int32_t* counts = params.chunk_counts +
                    (static_cast<int64_t>(list / params.cut.sections) * chunks + first) * blocks +
                    segment % blocks;
  // The loads of a batch precede its stores, because the compiler may not move a load before a
  // store to the same array.
  constexpr int kBatch = 16;
  int total = 0;
  for (int base = 0; base < count; base += kBatch) {
    int batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch[i] = base + i < count ? counts[static_cast<int64_t>(base + i) * blocks] : 0;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (base + i < count) counts[static_cast<int64_t>(base + i) * blocks] = total;
      total += batch[i];
    }
  }
  params.segment_start[segment] = total;
}

// Exclusive scan of a pair of values over the CTA. Returns the exclusive prefix and adds the totals
// to `carry`.
__device__ int2 scan_pair(int2 value, int2* warp_sums, int2& carry) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int2 inclusive = value;
  for (int step = 1; step < 32; step *= 2) {
    const int x = __shfl_up_sync(~0u, inclusive.x, step);
    const int y = __shfl_up_sync(~0u, inclusive.y, step);
    if (lane >= step) {
      inclusive.x += x;
      inclusive.y += y;
    }
  }
  if (lane == 31) warp_sums[warp] = inclusive;
  __syncthreads();
  int2 before = carry;
  int2 total = carry;
  for (int i = 0; i < kScanThreads / 32; ++i) {
    if (i < warp) {
      before.x += warp_sums[i].x;
      before.y += warp_sums[i].y;
    }
    total.x += warp_sums[i].x;
    total.y += warp_sums[i].y;
  }
  __syncthreads();
  carry = total;
  return {before.x + inclusive.x - value.x, before.y + inclusive.y - value.y};
}

__host__ __device__ constexpr int parts_of(int count) {
  return (count + kItemTokens - 1) / kItemTokens;
}

// One CTA computes the starts of all segments and of their items.
__global__ void __launch_bounds__(kScanThreads)
    starts_kernel(BlockListsParams params, int segments) {
  wait_for_earlier_kernels();
  __shared__ int2 warp_sums[kScanThreads / 32];
  int2 carry = {0, 0};
  for (int base = 0; base < segments; base += kScanThreads) {
    const int segment = base + static_cast<int>(threadIdx.x);
    const int count = segment < segments ? params.segment_start[segment] : 0;
    const int2 start = scan_pair({count, parts_of(count)}, warp_sums, carry);
    if (segment >= segments) continue;
    params.segment_start[segment] = start.x;
    params.segment_item_start[segment] = start.y;
  }
  if (threadIdx.x == 0) {
    params.segment_start[segments] = carry.x;
    params.segment_item_start[segments] = carry.y;
    *params.claims = 0;
  }
}

// Writes the items of as many of the KV head's blocks as the chunk has, one warp for each block.
// Lists are cut into equal parts, section by section.
__device__ __forceinline__ void write_items(const BlockListsParams& params, const Position& at,
                                            int blocks) {
  constexpr int kBlocks = kChunk / kBlock;
  static_assert(kBlocks <= kThreads / 32);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int block = at.chunk * kBlocks + warp;
  if (warp >= kBlocks || block >= blocks) return;
  for (int section = 0; section < params.cut.sections; ++section) {
    const int list = static_cast<int>(blockIdx.y) * params.cut.sections + section;
    const int segment = list * blocks + block;
    const int start = params.segment_start[segment];
    const int count = params.segment_start[segment + 1] - start;
    const int first_item = params.segment_item_start[segment];
    const int parts = parts_of(count);
    const int part_tokens = parts == 0 ? 0 : ((count + parts - 1) / parts + 31) / 32 * 32;
    for (int part = static_cast<int>(threadIdx.x) % 32; part < parts; part += 32) {
      const int begin = min(count, part * part_tokens);
      const int end = min(count, begin + part_tokens);
      params.items[first_item + part] = {segment, start + begin, start + end, first_item + part};
    }
  }
}

// kPrefixes: shared memory behind the bitmap holds the number of bits before each word, 16 bits
// each.
template <bool kPrefixes>
__global__ void __launch_bounds__(kThreads) scatter_kernel(BlockListsParams params, int blocks) {
  wait_for_earlier_kernels();
  extern __shared__ __align__(16) uint32_t bitmap[];
  const Position at = position(params.shape, blocks);
  auto* before = reinterpret_cast<uint16_t*>(bitmap + at.blocks * kWords);
  const OwnSlots own(params, at);
  if (blockIdx.z == 0) write_items(params, at, blocks);
  const int32_t* offsets = params.chunk_counts +
                           (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * blocks +
                           at.first_block;
  const int list = static_cast<int>(blockIdx.y) * params.cut.sections +
                   params.cut.section_of_chunk(static_cast<int>(blockIdx.x));
  const int32_t* starts =
      params.segment_start + static_cast<int64_t>(list) * blocks + at.first_block;
  int first[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    first[i] = own.blocks[i] < 0 ? 0 : starts[own.blocks[i]] + offsets[own.blocks[i]];
  fill_bitmap(own, at.blocks, bitmap);
  if constexpr (kPrefixes) {
    static_assert(kThreads % kWords == 0 && 32 % kWords == 0);
    const int word = static_cast<int>(threadIdx.x) % kWords;
    for (int base = 0; base < at.blocks; base += kThreads / kWords) { // only whole warps iterate
      const int block = base + static_cast<int>(threadIdx.x) / kWords;
      const int bits = block < at.blocks ? __popc(bitmap[word_place(block, word)]) : 0;
      int sum = bits;
#pragma unroll
      for (int step = 1; step < kWords; step *= 2) {
        const int lower = __shfl_up_sync(~0u, sum, step, kWords);
        if (word >= step) sum += lower;
      }
      if (block < at.blocks) before[word_place(block, word)] = static_cast<uint16_t>(sum - bits);
    }
    __syncthreads();
  }
  const int own_word = own.local / 32;
  const uint32_t below = (1u << (own.local % 32)) - 1u;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int block = own.blocks[i];
    if (block < 0) continue;
    int rank = __popc(bitmap[word_place(block, own_word)] & below);
    if constexpr (kPrefixes) {
      rank += before[word_place(block, own_word)];
    } else {
      for (int word = 0; word < own_word; ++word)
        rank += __popc(bitmap[word_place(block, word)]);
    }
    params.entries[first[i] + rank] = (at.chunk * kChunk + own.local) * kSlots + own.slot + i;
  }
}

// Bytes of shared memory that a CTA may use on the current device.
int most_shared_bytes() {
  int device = 0;
  int bytes = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
          cudaSuccess)
    return 0;
  return bytes;
}

} // namespace

int block_lists_segments(const AttentionShape& shape, const ListCut& cut) {
  return kv_head_count(shape) * cut.sections * block_count(shape.sequence);
}

int block_lists_item_capacity(const AttentionShape& shape, const ListCut& cut, int kv_heads) {
  // Each list may end with one item that is not full. The lists are those of the blocks that a
  // section's tokens see.
  const int64_t pairs = int64_t{shape.sequence - cut.first_token} * kSlots;
  int64_t lists = 0;
  for (int section = 0; section < cut.sections; ++section)
    lists += block_count(cut.end(section));
  return static_cast<int>(kv_heads * (pairs / kItemTokens + lists));
}

std::size_t block_lists_chunk_count_size(const AttentionShape& shape) {
  return static_cast<std::size_t>(kv_head_count(shape)) * block_count(shape.sequence) *
         chunk_count(shape);
}

cudaError_t launch_block_lists(const BlockListsParams& params, cudaStream_t stream) {
  const AttentionShape& shape = params.shape;
  const int64_t pairs = int64_t{shape.batch} * shape.sequence * shape.groups * kSlots;
  if (pairs <= 0 || pairs > INT32_MAX || shape.sequence > kMaxSequence ||
      kv_head_count(shape) > kMaxKvHeads || params.cut.sequence != shape.sequence)
    return cudaErrorInvalidValue;
  const int blocks = block_count(shape.sequence);
  const int chunks = chunk_count(shape);
  const int segments = block_lists_segments(shape, params.cut);
  const int bitmap_bytes = block_lists_shared_bytes(shape.sequence);
  const int prefix_bytes = bitmap_bytes / 2;
  const bool prefixes = bitmap_bytes + prefix_bytes <= most_shared_bytes();
  const int scatter_bytes = bitmap_bytes + (prefixes ? prefix_bytes : 0);
  const auto scatter = prefixes ? scatter_kernel<true> : scatter_kernel<false>;
  cudaError_t error =
      cudaFuncSetAttribute(count_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bitmap_bytes);
  if (error == cudaSuccess) {
    error =
        cudaFuncSetAttribute(scatter, cudaFuncAttributeMaxDynamicSharedMemorySize, scatter_bytes);
  }
  if (error != cudaSuccess) return error;
  const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(shape.batch * shape.groups),
                  static_cast<unsigned>((blocks + kListBlocks - 1) / kListBlocks));
  error = launch_kernel(count_kernel, grid, kThreads, static_cast<std::size_t>(bitmap_bytes),
                        stream, params, blocks);
  if (error == cudaSuccess) {
    error =
        launch_kernel(chunk_offsets_kernel, dim3((segments + kOffsetThreads - 1) / kOffsetThreads),
                      kOffsetThreads, 0, stream, params, blocks, chunks, segments);
  }
  if (error == cudaSuccess) {
    error = launch_kernel(starts_kernel, dim3(1), kScanThreads, 0, stream, params, segments);
  }
  if (error == cudaSuccess) {
    error = launch_kernel(scatter, grid, kThreads, static_cast<std::size_t>(scatter_bytes), stream,
                          params, blocks);
  }
  return error;
}

} // namespace nsa::kernels
