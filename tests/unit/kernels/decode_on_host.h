// Makes the decoding kernel's device code run on the host. Products are computed from the fragments
// in a warp's lanes, with the hardware's layout. CTAs of a cluster write into each other's shared
// memory. It also makes rows of BF16 for the inputs.
#pragma once

#include "nsa_model/kernels/common/mma.cuh"
#include "tests/unit/kernels/one_warp.h"

#include <cmath>

namespace nsa::kernels {

inline float bf16_half(uint64_t words, int i) { // returns the i-th of four BF16 values
  return __builtin_bit_cast(float, static_cast<uint32_t>(words >> (16 * i) & 0xFFFFu) << 16);
}
// mma.m16n8k16, with g = lane / 4 and q = lane % 4. Registers of the left factor hold rows g and g
// + 8, columns 2q, 2q + 1, 2q + 8 and 2q + 9. Those of the right factor hold rows 2q, 2q + 1, 2q +
// 8 and 2q + 9, column g.
inline void multiply_add(float (&d)[4], const Fragment& a, uint32_t b0, uint32_t b1) {
  const auto pair = [](uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; };
  uint64_t upper[kLanes];
  uint64_t lower[kLanes];
  uint64_t right[kLanes];
  Warp& warp = *Warp::current;
  std::copy_n(warp.meet(10, pair(a.r[0], a.r[2])), kLanes, upper);
  std::copy_n(warp.meet(11, pair(a.r[1], a.r[3])), kLanes, lower);
  std::copy_n(warp.meet(12, pair(b0, b1)), kLanes, right);
  const int group = warp.lane() / 4;
  const int quad = warp.lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const uint64_t* rows = i < 2 ? upper : lower;
    const int column = 2 * quad + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int place = k / 8 * 2 + k % 2;
      d[i] += bf16_half(rows[4 * group + k % 8 / 2], place) *
              bf16_half(right[4 * column + k % 8 / 2], place);
    }
  }
}
inline uint32_t bf16_bits(float value) { // rounded to nearest even
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  return (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
}
inline uint32_t pack_bf16(float low, float high) {
  return bf16_bits(low) | bf16_bits(high) << 16;
}
inline float exp2_approximate(float x) {
  return std::exp2(x);
}

} // namespace nsa::kernels

#include "nsa_model/kernels/decode/cluster.cuh"

#include <vector_types.h>

namespace nsa::kernels::decode {

// Runs the warps of all CTAs of a cluster in turn. `shared` has the shared memory of each CTA, all
// with one layout. A warp that waits for a count checks it at each of its turns. All its lanes
// check in the same turn, so nothing is counted between their checks.
class HostCluster {
public:
  using Bytes = std::vector<float4>;
  HostCluster(int warps, std::vector<Bytes>& shared) : warps_(warps), shared_(shared) {}

  // Runs body(rank) as each thread of each CTA. Returns false if lanes diverge or all wait forever.
  bool run(const std::function<void(int)>& body) {
    const int ctas = static_cast<int>(shared_.size());
    std::vector<std::function<void()>> bodies;
    for (int rank = 0; rank < ctas; ++rank)
      bodies.emplace_back([&body, rank] { body(rank); });
    for (int i = 0; i < ctas * warps_; ++i)
      all_.push_back(std::make_unique<Warp>(bodies[static_cast<std::size_t>(i / warps_)],
                                            i % warps_ * kLanes));
    began_.assign(all_.size(), 0);
    met_.assign(all_.size(), 0);
    met_of_cta_.assign(shared_.size(), 0);
    current = this;
    bool good = true;
    for (int turn = 0; good && turn < 1 << 20; ++turn) {
      bool is_over = true;
      for (int rank = 0; rank < ctas; ++rank)
        good = good && advance(rank, is_over);
      if (is_over) break;
      if (turn + 1 == 1 << 20) good = false;
    }
    current = nullptr;
    return good;
  }

  static inline HostCluster* current = nullptr;
  int rank() const { return static_cast<int>(running_) / warps_; }
  // Returns the place in CTA `rank` that corresponds to `mine` in this one.
  template <typename T> T* of_rank(T* mine, int rank) const {
    const Bytes& own = shared_[static_cast<std::size_t>(this->rank())];
    const auto offset =
        reinterpret_cast<const char*>(mine) - reinterpret_cast<const char*>(own.data());
    Bytes& theirs = shared_[static_cast<std::size_t>(rank)];
    if (offset < 0 || static_cast<std::size_t>(offset) + sizeof(T) > theirs.size() * sizeof(float4))
      std::abort(); // not in shared memory
    return reinterpret_cast<T*>(reinterpret_cast<char*>(theirs.data()) + offset);
  }
  void begin() {
    Warp::current->meet(20, 0);
    if (Warp::current->lane() == 0) {
      ++began_[running_];
      ++began_of_all_;
    }
  }
  void await() {
    const auto running = running_;
    do
      Warp::current->meet(21, 0);
    while (began_of_all_ < began_[running] * static_cast<int>(all_.size()));
  }
  void meet_warps(int warps) {
    const auto running = running_;
    int& count = met_of_cta_[running / static_cast<std::size_t>(warps_)];
    Warp::current->meet(22, 0);
    if (Warp::current->lane() == 0) {
      ++met_[running];
      ++count;
    }
    do
      Warp::current->meet(23, 0);
    while (count < met_[running] * warps);
  }

private:
  bool advance(int rank, bool& is_over) {
    const auto begin = static_cast<std::size_t>(rank * warps_);
    const auto end = begin + static_cast<std::size_t>(warps_);
    bool opens = true;
    for (auto i = begin; i < end; ++i)
      opens = opens && (all_[i]->is_finished() || all_[i]->is_at_barrier());
    for (auto i = begin; i < end; ++i) {
      if (all_[i]->is_finished()) continue;
      is_over = false;
      if (all_[i]->is_at_barrier() && !opens) continue;
      running_ = i;
      if (!all_[i]->advance()) return false;
    }
    return true;
  }

  const int warps_;
  std::vector<Bytes>& shared_;
  std::vector<std::unique_ptr<Warp>> all_;
  std::size_t running_ = 0;
  std::vector<int> began_, met_, met_of_cta_; // counts for each warp and each CTA
  int began_of_all_ = 0;
};

// A signal's state: expected warps in the low half, expected bytes in the high half.
inline void expect(Signal& signal, int warps, int bytes) {
  signal.state = static_cast<uint64_t>(bytes) << 32 | static_cast<uint32_t>(warps);
}
inline void begin_cluster() {
  HostCluster::current->begin();
}
inline void await_cluster() {
  HostCluster::current->await();
}
template <typename T> void send(T* mine, const T& value, int rank, Signal& signal) {
  *HostCluster::current->of_rank(mine, rank) = value;
  uint64_t& state = HostCluster::current->of_rank(&signal, rank)->state;
  if (state >> 32 < sizeof(T)) std::abort(); // more bytes than expected
  state -= static_cast<uint64_t>(sizeof(T)) << 32;
}
inline void arrive(Signal& signal) {
  Warp::current->meet(25, 0);
  if (Warp::current->lane() != 0) return;
  if (static_cast<uint32_t>(signal.state) == 0) std::abort();
  --signal.state;
}
inline void await(const Signal& signal) {
  do
    Warp::current->meet(24, 0);
  while (signal.state != 0);
}
inline bool has_come(const Signal& signal) {
  return Warp::current->meet(26, signal.state == 0 ? 1 : 0)[0] != 0;
}
inline void prefetch(const void*, int) {}
inline void meet_warps(int warps) {
  HostCluster::current->meet_warps(warps);
}

} // namespace nsa::kernels::decode

#include "nsa_model/kernels/decode/alone.cuh"
#include "nsa_model/reference/attention.h"

#include <array>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>
#include <random>
#include <string>

namespace nsa::kernels::decode {

using Row = std::vector<double>;

// Rows of 64 BF16 values, aligned to 16 bytes, all with different values.
class Rows {
public:
  Rows(int count, unsigned seed, double deviation)
      : words_(static_cast<std::size_t>(count) * kHeadDim / 8) {
    std::mt19937 random(seed);
    std::normal_distribution<double> normal(0, deviation);
    for (int i = 0; i < count * kHeadDim; ++i)
      set(i, static_cast<float>(normal(random)));
  }
  const __nv_bfloat16* data() const {
    return reinterpret_cast<const __nv_bfloat16*>(words_.data());
  }
  void set(int i, float value) {
    const auto bits = static_cast<uint16_t>(bf16_bits(value));
    std::memcpy(reinterpret_cast<unsigned char*>(words_.data()) + 2 * i, &bits, 2);
  }
  double at(int row, int dimension) const {
    uint16_t bits;
    std::memcpy(&bits,
                reinterpret_cast<const unsigned char*>(words_.data()) +
                    2 * (row * kHeadDim + dimension),
                2);
    return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
  }

private:
  std::vector<uint4> words_;
};

} // namespace nsa::kernels::decode
