#include "daemon/shim/evidence/symbols.h"

#include "daemon/shim/evidence/elfutils.h"

#include <cstdlib>
#include <cxxabi.h>
#include <filesystem>
#include <memory>
#include <vector>

namespace nsa::shim::evidence {

namespace {

constexpr size_t kMaxNameLength = 200;

std::string hexadecimal(uint64_t value) {
  char digits[24];
  const int length =
      std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(value));
  return {digits, static_cast<size_t>(length)};
}

std::string file_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

} // namespace

std::string demangle(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  std::string text = status == 0 && plain ? plain.get() : name;
  if (text.size() > kMaxNameLength) text = text.substr(0, kMaxNameLength - 3) + "...";
  return text;
}

void Symbols::look_up() {
  for (auto& [object, addresses] : wanted_)
    if (!object.empty() && object[0] == '/') look_up_object(object, addresses);
}

void Symbols::look_up_object(const std::string& object, std::map<uint64_t, Name>& wanted) {
  static const Dwfl_Callbacks callbacks{nullptr, find_no_debuginfo, ::dwfl_offline_section_address,
                                        nullptr};
  const DwflPointer dwfl(::dwfl_begin(&callbacks));
  if (!dwfl) return;
  Dwfl_Module* module = ::dwfl_report_offline(dwfl.get(), "", object.c_str(), -1);
  ::dwfl_report_end(dwfl.get(), nullptr, nullptr);
  GElf_Addr bias = 0;
  if (module == nullptr || ::dwfl_module_getelf(module, &bias) == nullptr) return;

  // Finds the nearest symbol that begins at or below each address. A symbol without a size
  // (assembly) extends up to the next one.
  struct Best {
    GElf_Addr begin = 0;
    std::string name;
  };
  std::map<uint64_t, Best> best;
  const int count = ::dwfl_module_getsymtab(module);
  for (int i = 0; i < count; ++i) {
    GElf_Sym symbol;
    GElf_Addr begin = 0;
    const char* name =
        ::dwfl_module_getsym_info(module, i, &symbol, &begin, nullptr, nullptr, nullptr);
    if (name == nullptr || name[0] == '\0') continue;
    const int type = GELF_ST_TYPE(symbol.st_info);
    if ((type != STT_FUNC && type != STT_GNU_IFUNC && type != STT_NOTYPE) ||
        symbol.st_shndx == SHN_UNDEF)
      continue;
    begin -= bias;
    const GElf_Addr end = symbol.st_size > 0 ? begin + symbol.st_size : ~GElf_Addr{0};
    for (auto at = wanted.lower_bound(begin); at != wanted.end() && at->first < end; ++at) {
      Best& found = best[at->first];
      const bool sized = symbol.st_size > 0;
      if (found.name.empty() || begin > found.begin || (begin == found.begin && sized))
        found = {begin, name};
      // A far symbol without a size is skipped: no name is better than a wrong one.
      if (!sized && at->first - begin > 4096) break;
    }
  }
  for (auto& [address, name] : wanted) {
    const auto found = best.find(address);
    if (found != best.end() && address - found->second.begin < (1u << 24)) {
      name.function = demangle(found->second.name.c_str());
      name.offset = address - found->second.begin;
    }
    if (Dwfl_Line* line = ::dwfl_module_getsrc(module, address + bias)) {
      int number = 0;
      const char* file = ::dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
      if (file != nullptr) name.place = file_name(file) + ":" + std::to_string(number);
    }
  }
}

std::string Symbols::text(const std::string& object, uint64_t address) const {
  if (object.empty()) return hexadecimal(address) + " (no file)";
  const auto addresses = wanted_.find(object);
  if (addresses == wanted_.end()) return file_name(object) + "+" + hexadecimal(address);
  const auto found = addresses->second.find(address);
  if (found == addresses->second.end() || found->second.function.empty())
    return file_name(object) + "+" + hexadecimal(address);
  const Name& name = found->second;
  return name.function + "+" + hexadecimal(name.offset) + " (" +
         (name.place.empty() ? file_name(object) : name.place) + ")";
}

} // namespace nsa::shim::evidence
