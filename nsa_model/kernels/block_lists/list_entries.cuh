#pragma once
// How the producer warps of the list kernels read the entries of a unit. An answer takes as long as
// a chunk of tokens lasts, so that one read a chunk, a chunk ahead, would be waited for.

#include <cstdint>

namespace nsa::kernels {

#ifdef __CUDACC__

// A warp's entries of the list [begin, end), a chunk after another: `warp_tokens` (at most 32) of
// every chunk of chunk_tokens, from the warp's `first` on. 32 entries are read at once, and the
// next 32 are asked for when those are begun. By whole warps.
class ListEntries {
public:
  __device__ __forceinline__ ListEntries(const int32_t* entries, int begin, int end, int first,
                                         int chunk_tokens, int warp_tokens)
      : entries_(entries), last_(end - 1), warp_tokens_(warp_tokens), chunks_(32 / warp_tokens),
        step_(chunks_ * chunk_tokens) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    position_ = begin + first + lane / warp_tokens * chunk_tokens + lane % warp_tokens;
    next_ = read();
  }
  // The next chunk's: lane i < warp_tokens has the i-th. Past the end of the list the last again.
  __device__ __forceinline__ int next() {
    if (chunk_ == 0) {
      current_ = next_;
      next_ = read();
    }
    const int entry = __shfl_sync(~0u, current_, chunk_ * warp_tokens_ + threadIdx.x % 32);
    chunk_ = chunk_ + 1 == chunks_ ? 0 : chunk_ + 1;
    return entry;
  }

private:
  __device__ __forceinline__ int read() {
    const int entry = entries_[min(position_, last_)];
    position_ += step_;
    return entry;
  }
  const int32_t* entries_;
  int last_;
  int warp_tokens_;
  int chunks_; // that 32 entries are of
  int step_;
  int position_; // of the lane's next read
  int chunk_ = 0;
  int current_ = 0;
  int next_;
};

// The values that a warp's first kCount lanes have, in every lane. Bulk copies take their operands
// from registers that a warp shares: of values that the compiler knows to be the same in all lanes
// it makes one instruction, else a loop over the lanes, six times as long. Only of counts that it
// knows: for others this is empty, and each lane copies its own.
template <typename Heads, int kCount> struct EveryLane {
  int values[kCount];
  __device__ __forceinline__ explicit EveryLane(int value) {
    if constexpr (!Heads::kPads) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        values[i] = __shfl_sync(~0u, value, i);
    }
  }
};

#endif

} // namespace nsa::kernels
