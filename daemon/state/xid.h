// Meanings of NVIDIA's driver error numbers (Xid), from NVIDIA's Xid catalogue. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nsa::state {

struct XidMeaning {
  std::string text; // "fallen off the bus"; "Xid 999" for an unknown number
  // A GPU, its memory or its links are broken, so that ranks die of it. False for errors that a
  // program causes itself, that are only recorded (a remapped row), or that are unknown.
  bool hardware = false;
};
XidMeaning xid_meaning(uint64_t number);
std::vector<uint64_t> hardware_xids(); // all numbers for which `hardware` is true

} // namespace nsa::state
