// Numbers of shims' messages, if an attempt has a shim on each of several nodes. Each shim numbers
// its messages from 1. The upper bits have the part's number, so numbers of the first part, and of
// an attempt on one node, are unchanged. No I/O.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nsa::wire {

constexpr int kPartShift = 48;
constexpr uint64_t sequence_of(size_t part, uint64_t number) {
  return number == 0 ? 0 : static_cast<uint64_t>(part) << kPartShift | number;
}
constexpr size_t part_of_sequence(uint64_t sequence) {
  return static_cast<size_t>(sequence >> kPartShift);
}
constexpr uint64_t number_of_sequence(uint64_t sequence) {
  return sequence & ((uint64_t{1} << kPartShift) - 1);
}

} // namespace nsa::wire
