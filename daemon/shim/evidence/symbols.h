// Names for addresses, from the objects themselves: .symtab if it was left in, .dynsym otherwise,
// and source lines if the object has them. It searches nowhere else.
//
// All addresses are added first and looked up together. So LibTorch's half a million symbols are
// scanned once, in a fraction of a second, and not once a frame. One thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace nsa::shim::evidence {

class Symbols {
public:
  void add(const std::string& object, uint64_t address) { wanted_[object][address]; }
  void look_up();

  // "function+0x12 (file.cpp:34)", "function+0x12 (libx.so)", or "libx.so+0x1234" without a name.
  std::string text(const std::string& object, uint64_t address) const;

private:
  struct Name {
    std::string function; // demangled; empty: no function covers the address
    uint64_t offset = 0;
    std::string place; // file:line; empty: unknown
  };
  static void look_up_object(const std::string& object, std::map<uint64_t, Name>& wanted);
  std::map<std::string, std::map<uint64_t, Name>> wanted_;
};

// Demangles a C++ name; returns other names unchanged. Long template arguments are cut.
std::string demangle(const char* name);

} // namespace nsa::shim::evidence
