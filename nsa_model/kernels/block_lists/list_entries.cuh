#pragma once
// How the producer warps of the list kernels read the entries of a unit. A read takes as long as
// the work on a chunk of tokens. One read for each chunk, issued one chunk ahead, would therefore
// stall.

#include <cstdint>

namespace nsa::kernels {

#ifdef __CUDACC__

// A warp's entries of the list [begin, end), chunk by chunk. Of every chunk of chunk_tokens it
// reads `warp_tokens` (at most 32), starting at the warp's `first`. It reads 32 entries at once,
// and issues the next read when it begins to use them. Whole warps call it.
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
  // Returns the next chunk's entries: lane i < warp_tokens has the i-th. After the end of the list
  // it repeats the last entry.
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
  int chunks_; // chunks that 32 entries cover
  int step_;
  int position_; // position of the lane's next read
  int chunk_ = 0;
  int current_ = 0;
  int next_;
};

// Broadcasts the values of a warp's first kCount lanes to all lanes. Bulk copies take their
// operands from uniform registers. If the compiler knows that a value is the same in all lanes, it
// emits one instruction. Otherwise it emits a loop over the lanes that is six times as long. This
// works only for counts known at compile time. For others the struct is empty, and each lane copies
// its own value.
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
