// Code that all uses of elfutils' libdwfl here share.
#pragma once

#include <elfutils/libdwfl.h>
#include <memory>

namespace nsa::shim::evidence {

struct DwflEnd {
  void operator()(Dwfl* dwfl) const { ::dwfl_end(dwfl); }
};
using DwflPointer = std::unique_ptr<Dwfl, DwflEnd>;

// For Dwfl_Callbacks::find_debuginfo. It never looks for separate debug files and never downloads
// any. The sections of the objects themselves are enough.
inline int find_no_debuginfo(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*,
                             const char*, GElf_Word, char**) {
  return -1;
}

} // namespace nsa::shim::evidence
