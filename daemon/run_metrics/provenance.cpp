#include "daemon/run_metrics/provenance.h"

#include "common/base/build_info.h"
#include "common/base/checksum.h"
#include "common/base/file.h"
#include "daemon/proc/node_readings.h"

#include <cstring>
#include <elf.h>
#include <fstream>

namespace nsa::control {

namespace {

bool read_at(std::ifstream& file, uint64_t offset, void* to, size_t size) {
  file.seekg(static_cast<std::streamoff>(offset));
  return static_cast<bool>(file.read(static_cast<char*>(to), static_cast<std::streamsize>(size)));
}

std::string hex(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
    text.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
  }
  return text;
}

// Finds the build-id among ELF notes. Names and descriptors are padded to four bytes (elf(5)).
std::string build_id_in(std::string_view notes) {
  const auto padded = [](size_t size) { return (size + 3) & ~size_t{3}; };
  Elf64_Nhdr note;
  while (notes.size() >= sizeof note) {
    std::memcpy(&note, notes.data(), sizeof note);
    notes.remove_prefix(sizeof note);
    const size_t name_size = padded(note.n_namesz);
    if (notes.size() < name_size + note.n_descsz) return {};
    if (note.n_type == NT_GNU_BUILD_ID &&
        notes.substr(0, note.n_namesz) == std::string_view(ELF_NOTE_GNU, sizeof ELF_NOTE_GNU))
      return hex(notes.substr(name_size, note.n_descsz));
    notes.remove_prefix(std::min(notes.size(), name_size + padded(note.n_descsz)));
  }
  return {};
}

// Calls `take` with each segment of the type until it returns a text. Empty if none does, or if the
// file is not a 64-bit ELF program.
template <class Take>
std::string from_segment(const std::filesystem::path& program, uint32_t type, Take take) {
  constexpr uint64_t kLargest = 1 << 16;
  std::ifstream file(program, std::ios::binary);
  Elf64_Ehdr header;
  if (!read_at(file, 0, &header, sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
    return {};
  for (uint64_t i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    if (!read_at(file, header.e_phoff + i * header.e_phentsize, &segment, sizeof segment))
      return {};
    if (segment.p_type != type || segment.p_filesz > kLargest) continue;
    std::string bytes(segment.p_filesz, '\0');
    if (!read_at(file, segment.p_offset, bytes.data(), bytes.size())) return {};
    if (std::string made = take(bytes); !made.empty()) return made;
  }
  return {};
}

// CPU and NUMA lists in the kernel's format ("0-63", "0,1"). The caller adds the links between
// GPUs.
nlohmann::json topology() {
  const auto line = [](const char* path) {
    std::string text = read_file(path, 4096).value_or("");
    while (!text.empty() && text.back() == '\n')
      text.pop_back();
    return text;
  };
  return {{"cpus", line("/sys/devices/system/cpu/online")},
          {"numa_nodes", line("/sys/devices/system/node/online")}};
}

} // namespace

std::string program_id(const std::filesystem::path& program) {
  if (std::string id = from_segment(program, PT_NOTE, build_id_in); !id.empty()) return id;
  return checksum_file_hex(program).value_or("");
}

std::string program_interpreter(const std::filesystem::path& program) {
  return from_segment(program, PT_INTERP,
                      [](const std::string& path) { return path.substr(0, path.find('\0')); });
}

nlohmann::json begin_provenance(const RunRecord& record,
                                const std::map<std::string, std::string>& programs) {
  nlohmann::json ids = nlohmann::json::object();
  for (const auto& [name, file] : programs)
    ids[name] = program_id(file);
  return {
      {"nsad", build_info().version + "+" + build_info().commit},
      {"build_ids", std::move(ids)},
      {"spec_digest", record.row.spec_digest},
      {"node", proc::host_name()},
      {"topology", topology()},
      {"devices", std::vector<nlohmann::json>(static_cast<size_t>(record.spec.parallel.ranks))}};
}

void note_hello(nlohmann::json& provenance, const wire::RankHello& hello) {
  if (!provenance.is_object()) return;
  if (hello.rank == 0) {
    provenance["worker"] = hello.build;
    provenance["versions"] = hello.versions;
  }
  nlohmann::json& devices = provenance["devices"];
  if (devices.is_array() && hello.rank >= 0 && static_cast<size_t>(hello.rank) < devices.size())
    devices[static_cast<size_t>(hello.rank)] = hello.device;
}

nlohmann::json changed_programs(const nlohmann::json& before, const nlohmann::json& now) {
  nlohmann::json changed = nlohmann::json::object();
  const nlohmann::json none = nlohmann::json::object();
  const auto ids = [&](const nlohmann::json& provenance) {
    return provenance.is_object() ? provenance.value("build_ids", none) : none;
  };
  const nlohmann::json old_ids = ids(before), new_ids = ids(now);
  for (const auto& [name, value] : new_ids.items()) {
    const std::string old = old_ids.value(name, std::string());
    const std::string id = value.is_string() ? value.get<std::string>() : std::string();
    if (old.empty() || id.empty() || id == old) continue;
    changed[name] = {{"before", old}, {"now", id}};
  }
  return changed;
}

} // namespace nsa::control
