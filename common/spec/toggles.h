// The registry of toggles, and what replaces each flag and variable of the predecessor. [toggles]
// in run.toml takes only these names. The worker reports the effective value of each.
#pragma once

#include "common/base/result.h"
#include "common/spec/field.h"
#include "common/spec/run_spec.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

enum class ToggleType : uint8_t { kBool, kInt, kChoice, kText };
constexpr auto choice_names(ToggleType) {
  return names_of("bool", "int", "enum", "text");
}

struct Toggle {
  std::string_view name; // "attention.kernels"
  ToggleType type;
  std::vector<std::string_view> choices; // of kChoice, not empty
  // The environment variable that it becomes. Empty: a worker reads its value (worker_toggles.h).
  std::string_view variable;
  std::string_view meaning;
  // A host may depend on it (some forbid NVLink multicast): where the run file says nothing and
  // nsad's own environment has the variable, its value reaches the ranks unchanged.
  bool from_host = false;
  std::string_view default_value = {};
};
const std::vector<Toggle>& toggle_registry();
const Toggle* find_toggle(std::string_view name);
// Of a toggle of type kBool, in a run file's toggles or in resolved ones.
bool is_set_true(const std::map<std::string, std::string>& toggles, std::string_view name);

// What is wrong with this name or value; nothing when it may stand.
std::optional<Fault> check_toggle(const std::string& name, const std::string& value);

// Toggles that nsad's environment sets (from_host): merge them under what the run file gives
// before the spec is stored, so that they are requested, recorded and reported like all others.
std::map<std::string, std::string>
host_toggles(const std::map<std::string, std::string>& environment);

// Requested values (defaults filled in) after type checks; every problem in one Error.
Result<std::map<std::string, std::string>>
resolve_toggles(const std::map<std::string, std::string>& requested);

// nccl.socket_interface for ranks of one host; "=" is NCCL's sign for the whole name.
inline constexpr std::string_view kLoopbackInterface = "=lo";

// spec.toggles and what other keys of the run file ask for unless a toggle says otherwise:
// train.deterministic needs cublas.workspace and nccl.algorithm; several ranks on GPUs keep NCCL on
// loopback.
std::map<std::string, std::string> requested_toggles(const RunSpec& spec);

// The environment variables that resolved toggles become; an empty value becomes no variable.
std::map<std::string, std::string>
toggle_environment(const std::map<std::string, std::string>& resolved);

// NSA_* variables that our own programs read: name, which program, what for. docs/toggles.md lists
// them.
struct ProgramVariable {
  std::string_view name, program, meaning;
};
const std::vector<ProgramVariable>& program_variables();
bool is_program_variable(std::string_view name);
// Belongs to a toggle that is taken from the host where the run file is silent.
bool is_host_variable(std::string_view name);

struct PredecessorFlag {
  std::string_view name; // "NSA_FORCE_SEL_MASK", "--no-gc", "model.n_heads"
  std::string_view ours; // our key ("toggles.attention.kernels"); empty when dropped
  std::string_view why;  // why dropped, or how the meaning maps
};
const std::vector<PredecessorFlag>& predecessor_flags();
const PredecessorFlag* find_predecessor_flag(std::string_view name);

} // namespace nsa::spec
