// Runs a warp or a CTA without a GPU. The device code is compiled for the host, with the few
// functions of a warp that it uses. The 32 lanes are contexts that run in turn, each from one of
// these functions to the next. Include this header before the device code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <ucontext.h>
#include <vector>

inline constexpr int kLanes = 32;

inline constexpr int kBarrier = 0; // the function at which all warps of a CTA meet

// A lane that calls a function of the warp leaves its value and yields. At its next turn every lane
// has called it. Values have two rows used in turn, because the first lane calls the next function
// while others still read.
class Warp {
public:
  // Runs body() once as each lane. Returns false if the lanes did not call the same functions.
  static bool run(const std::function<void()>& body) {
    Warp warp(body, 0);
    while (!warp.is_finished())
      if (!warp.advance()) return false;
    return true;
  }

  // `body` and the warp must not move.
  Warp(const std::function<void()>& body, int first_thread)
      : body_(body), first_thread_(first_thread), stacks_(new char[kLanes * kStackBytes]) {
    for (int lane = 0; lane < kLanes; ++lane) {
      getcontext(&lanes_[lane]);
      lanes_[lane].uc_stack.ss_sp = stacks_.get() + lane * kStackBytes;
      lanes_[lane].uc_stack.ss_size = kStackBytes;
      lanes_[lane].uc_link = nullptr;
      makecontext(&lanes_[lane], &Warp::enter, 0);
    }
  }
  Warp(const Warp&) = delete;
  Warp& operator=(const Warp&) = delete;

  // Runs every lane to its next function. Returns false if these functions differ.
  bool advance() {
    current = this;
    for (lane_ = 0; lane_ < kLanes; ++lane_)
      swapcontext(&caller_, &lanes_[lane_]);
    current = nullptr;
    return std::all_of(at_, at_ + kLanes, [&](int at) { return at == at_[0]; });
  }
  bool is_finished() const { return finished_ == kLanes; }
  bool is_at_barrier() const { return !is_finished() && at_[0] == kBarrier; }

  static inline Warp* current = nullptr;
  int lane() const { return lane_; }
  int thread() const { return first_thread_ + lane_; }
  // Leaves a value, and returns the values of all lanes. `function` identifies the called function.
  const uint64_t* meet(int function, uint64_t value) {
    const int mine = lane_;
    const int row = turn_[mine]++ % 2;
    values_[row][mine] = value;
    at_[mine] = function;
    swapcontext(&lanes_[mine], &caller_);
    return values_[row];
  }

private:
  static constexpr std::size_t kStackBytes = 64 * 1024;
  static void enter() {
    Warp& warp = *current;
    warp.body_();
    const int mine = warp.lane_;
    warp.at_[mine] = -1;
    ++warp.finished_;
    swapcontext(&warp.lanes_[mine], &warp.caller_);
  }

  const std::function<void()>& body_;
  const int first_thread_;
  const std::unique_ptr<char[]> stacks_;
  ucontext_t caller_ = {};
  ucontext_t lanes_[kLanes] = {};
  uint64_t values_[2][kLanes] = {};
  int turn_[kLanes] = {};
  int at_[kLanes] = {};
  int lane_ = 0;
  int finished_ = 0;
};

// Runs body() once as each thread of a CTA. Warps run in turn, from one function to the next, and
// wait for each other at barriers. Returns false if the lanes of a warp diverge.
inline bool run_cta(int warps, const std::function<void()>& body) {
  std::vector<std::unique_ptr<Warp>> all;
  for (int i = 0; i < warps; ++i)
    all.push_back(std::make_unique<Warp>(body, i * kLanes));
  const auto every = [&](bool (Warp::*is)() const) {
    return std::all_of(all.begin(), all.end(),
                       [&](const auto& warp) { return warp->is_finished() || ((*warp).*is)(); });
  };
  while (!every(&Warp::is_finished)) {
    const bool opens = every(&Warp::is_at_barrier);
    for (const auto& warp : all) {
      if (warp->is_finished() || (warp->is_at_barrier() && !opens)) continue;
      if (!warp->advance()) return false;
    }
  }
  return true;
}

// The names that CUDA C++ gives to device code.
struct ThreadIndex {
  struct Lane {
    operator unsigned() const { return static_cast<unsigned>(Warp::current->thread()); }
  } x;
};
inline constexpr ThreadIndex threadIdx;

inline int __shfl_sync(unsigned, int value, int source, int width = kLanes) {
  const int first = Warp::current->lane() / width * width;
  return static_cast<int>(
      Warp::current->meet(1, static_cast<unsigned>(value))[first + source % width]);
}
inline int __shfl_xor_sync(unsigned, int value, int mask) {
  const int source = Warp::current->lane() ^ mask;
  return static_cast<int>(Warp::current->meet(2, static_cast<unsigned>(value))[source]);
}
inline int __shfl_up_sync(unsigned, int value, int distance, int width) {
  const int lane = Warp::current->lane();
  const int source = lane % width >= distance ? lane - distance : lane;
  return static_cast<int>(Warp::current->meet(3, static_cast<unsigned>(value))[source]);
}
inline float __shfl_xor_sync(unsigned mask, float value, int lanes) {
  return __builtin_bit_cast(float, __shfl_xor_sync(mask, __builtin_bit_cast(int, value), lanes));
}
inline float __shfl_up_sync(unsigned mask, float value, int distance, int width) {
  return __builtin_bit_cast(float,
                            __shfl_up_sync(mask, __builtin_bit_cast(int, value), distance, width));
}
inline unsigned __ballot_sync(unsigned, bool predicate) {
  const uint64_t* all = Warp::current->meet(4, predicate ? 1 : 0);
  unsigned bits = 0;
  for (int lane = 0; lane < kLanes; ++lane)
    bits |= static_cast<unsigned>(all[lane]) << lane;
  return bits;
}
inline void __syncthreads() {
  Warp::current->meet(kBarrier, 0);
}
inline void __threadfence() {} // only one thread runs at a time
inline uint32_t atomicAdd(uint32_t* target, uint32_t value) {
  const uint32_t before = *target;
  *target += value;
  return before;
}
template <typename T> T __ldcg(const T* source) {
  return *source;
}
inline void __syncwarp() {
  Warp::current->meet(5, 0);
}
// Returns the largest or smallest value of all lanes.
inline int __reduce_max_sync(unsigned, int value) {
  const uint64_t* all = Warp::current->meet(6, static_cast<unsigned>(value));
  return std::accumulate(all, all + kLanes, value,
                         [](int a, uint64_t b) { return std::max(a, static_cast<int>(b)); });
}
inline int __reduce_min_sync(unsigned, int value) {
  const uint64_t* all = Warp::current->meet(7, static_cast<unsigned>(value));
  return std::accumulate(all, all + kLanes, value,
                         [](int a, uint64_t b) { return std::min(a, static_cast<int>(b)); });
}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
inline int __ffs(int bits) {
  return __builtin_ffs(bits);
}
inline int __float_as_int(float value) {
  return __builtin_bit_cast(int, value);
}
inline float __int_as_float(int value) {
  return __builtin_bit_cast(float, value);
}
inline int max(int a, int b) {
  return a > b ? a : b;
}
inline int min(int a, int b) {
  return a < b ? a : b;
}
