#include "worker/data/permutation.h"

#include <bit>

namespace nsa::data {
namespace {

// Finaliser of SplitMix64 (Steele, Lea and Flood 2014).
uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ z >> 27) * 0x94D049BB133111EBull;
  return z ^ z >> 31;
}

} // namespace

Permutation::Permutation(int64_t size, uint64_t seed, int64_t epoch)
    : size_(static_cast<uint64_t>(size)) {
  const int bits = std::bit_width(size_ - 1);
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  uint64_t state = mix(seed + 0x9E3779B97F4A7C15ull) ^ static_cast<uint64_t>(epoch);
  for (uint64_t& key : keys_)
    key = mix(state += 0x9E3779B97F4A7C15ull);
}

int64_t Permutation::operator()(int64_t index) const {
  auto at = static_cast<uint64_t>(index);
  do {
    uint64_t left = at >> half_bits_, right = at & half_mask_;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (mix(right ^ key) & half_mask_);
      left = right;
      right = next;
    }
    at = left << half_bits_ | right;
    // The network permutes [0, 4^k), which contains [0, size_). Following the cycle of `index`
    // until it is below size_ permutes [0, size_).
  } while (at >= size_);
  return static_cast<int64_t>(at);
}

} // namespace nsa::data
