// The decoding kernels' device code for the host: products are computed from the fragments that the
// lanes of a warp hold, as the hardware lays them out; and rows of bf16 to feed them.
#pragma once

#include "tests/unit/kernels/one_warp.h"

#include <cmath>

namespace nsa::kernels::portable {

struct Fragment {
  uint32_t r[4];
};
inline float bf16_half(uint64_t words, int i) { // the i-th of four bf16
  return __builtin_bit_cast(float, static_cast<uint32_t>(words >> (16 * i) & 0xFFFFu) << 16);
}
// mma.m16n8k16: with g = lane / 4 and q = lane % 4, registers of the left factor hold rows g and
// g + 8, columns 2q, 2q + 1 and these + 8; of the right one rows 2q, 2q + 1 and + 8, column g.
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

} // namespace nsa::kernels::portable

#include "nsa_model/kernels/decode/ctas.cuh"
#include "nsa_model/reference/attention.h"

#include <array>
#include <gtest/gtest.h>
#include <memory>
#include <numeric>
#include <random>
#include <string>

namespace nsa::kernels::decode {

using Row = std::vector<double>;

// Rows of 64 bf16, aligned to 16 bytes, with values of their own.
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
    const auto bits = static_cast<uint16_t>(portable::bf16_bits(value));
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
