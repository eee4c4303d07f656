// Names for addresses: the symbol tables of the objects themselves, .symtab where it was left in,
// .dynsym otherwise, and source lines where the object carries them. Nothing is looked for
// elsewhere.
//
// All addresses are added first and looked up together: LibTorch's half a million symbols are then
// gone through once, in a fraction of a second, and not once a frame. One thread.
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
    std::string function; // demangled; empty: none covers it
    uint64_t offset = 0;
    std::string place; // file:line; empty: unknown
  };
  static void look_up_object(const std::string& object, std::map<uint64_t, Name>& wanted);
  std::map<std::string, std::map<uint64_t, Name>> wanted_;
};

// A C++ name for people; other names as they are. Long template arguments are cut.
std::string demangle(const char* name);

} // namespace nsa::shim::evidence
