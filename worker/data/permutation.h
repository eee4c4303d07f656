// A keyed permutation of [0, size) that gives the order of samples in an epoch. It is a function of
// (size, seed, epoch) only, and computes one index at a time. So a shuffle of any size has no state
// to store.
//
// It is a balanced Feistel network over the smallest even number of bits that holds `size`.
// Cycle-walking brings values back into range (Black and Rogaway, "Ciphers with Arbitrary Finite
// Domains", 2002). It is not meant to be secure.
#pragma once

#include <array>
#include <cstdint>

namespace nsa::data {

class Permutation {
public:
  // size >= 1.
  Permutation(int64_t size, uint64_t seed, int64_t epoch);

  // Maps index in [0, size) to [0, size), one to one. Takes about 10 ns, with fewer than 4 rounds
  // of cycle-walking on average. Callable from any thread.
  int64_t operator()(int64_t index) const;

private:
  static constexpr int kRounds = 6;
  uint64_t size_;
  int half_bits_;
  uint64_t half_mask_;
  std::array<uint64_t, kRounds> keys_;
};

} // namespace nsa::data
