// The presets of configs/gates, which are TOML: apart from gate.cpp, since a worker reads no TOML.
#include "common/base/embedded_file.h"
#include "common/spec/gate.h"

#include <cstdlib>

namespace nsa::spec {

const std::vector<EmbeddedFile>& gate_preset_files(); // made by CMake of configs/gates

namespace {

std::vector<GateRule> read_preset(const EmbeddedFile& file) {
  Reading reading;
  std::vector<GateRule> gates;
  for (const TomlEntry& entry : read_toml(file.text).entries)
    for (const std::vector<TomlEntry>& table : entry.tables)
      read_table(gate_fields(gates.emplace_back()), table, "gate.", std::string(file.name),
                 reading);
  if (!reading.problems.empty() || gates.empty()) std::abort(); // spec_test reads each of them
  return gates;
}

} // namespace

const std::vector<GatePreset>& gate_presets() {
  static const std::vector<GatePreset> kPresets = [] {
    std::vector<GatePreset> presets;
    for (const EmbeddedFile& file : gate_preset_files()) {
      const std::string_view name = file.name;
      presets.push_back({name.substr(0, name.rfind('.')), file.text, read_preset(file)});
    }
    return presets;
  }();
  return kPresets;
}

std::vector<GateRule> all_gates(const RunSpec& spec) {
  std::vector<GateRule> all = spec.gates;
  for (const std::string& name : spec.run.gates)
    for (const GatePreset& preset : gate_presets())
      if (preset.name == name) all.insert(all.end(), preset.gates.begin(), preset.gates.end());
  return all;
}

} // namespace nsa::spec
