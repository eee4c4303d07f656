// What the numbers of NVIDIA's driver errors (Xid) mean, from its Xid catalogue. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace nsa::state {

struct XidMeaning {
  std::string text; // "fallen off the bus"; of a number that is not known: "Xid 999"
  // A GPU, its memory or its links are broken, so that ranks die of it. Not what a program does by
  // itself, what is only recorded (a row that was remapped), or what is not known.
  bool hardware = false;
};
XidMeaning xid_meaning(uint64_t number);
std::vector<uint64_t> hardware_xids(); // all of which that holds

} // namespace nsa::state
