// A keyed permutation of [0, size): which sample comes at which place of an epoch. A function of
// (size, seed, epoch) alone, evaluated one index at a time, so a shuffle of any size has no state
// to store and none to lose.
//
// Balanced Feistel network over the smallest even number of bits that holds `size`, cycle-walked
// back into range (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). It mixes; it
// does not keep secrets.
#pragma once

#include <array>
#include <cstdint>

namespace nsa::data {

class Permutation {
public:
  // size >= 1.
  Permutation(int64_t size, uint64_t seed, int64_t epoch);

  // index in [0, size) -> [0, size), one to one. About 10 ns, fewer than 4 rounds of walking on
  // average. Any thread.
  int64_t operator()(int64_t index) const;

private:
  static constexpr int kRounds = 6;
  uint64_t size_;
  int half_bits_;
  uint64_t half_mask_;
  std::array<uint64_t, kRounds> keys_;
};

} // namespace nsa::data
