// The registry of toggles, and the replacements for the predecessor's flags and variables.
// [toggles] in run.toml accepts only these names. The worker reports the effective value of each.
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
  std::string_view name; // for example "attention.kernels"
  ToggleType type;
  std::vector<std::string_view> choices; // for kChoice, not empty
  // The environment variable that it sets. If empty, a worker reads the value (worker_toggles.h).
  std::string_view variable;
  std::string_view meaning;
  // A host may need a certain value (some forbid NVLink multicast). If the run file does not set
  // it and nsad's own environment has the variable, ranks get that value unchanged.
  bool from_host = false;
  std::string_view default_value = {};
};
const std::vector<Toggle>& toggle_registry();
const Toggle* find_toggle(std::string_view name);
// Takes a toggle of type kBool. `toggles` are those of a run file, or resolved ones.
bool is_set_true(const std::map<std::string, std::string>& toggles, std::string_view name);

// Returns the error of this name or value; nullopt if it is valid.
std::optional<Fault> check_toggle(const std::string& name, const std::string& value);

// Returns the toggles that nsad's environment sets (from_host). The run file's toggles override
// them. Merge them before the spec is stored, so that they are requested, recorded and reported
// like all others.
std::map<std::string, std::string>
host_toggles(const std::map<std::string, std::string>& environment);

// Returns requested values after type checks, with defaults filled in. One Error has all problems.
Result<std::map<std::string, std::string>>
resolve_toggles(const std::map<std::string, std::string>& requested);

// nccl.socket_interface for ranks of one host; in NCCL "=" means an exact name.
inline constexpr std::string_view kLoopbackInterface = "=lo";

// Returns spec.toggles and the toggles that other keys imply unless they are set.
// train.deterministic needs cublas.workspace and nccl.algorithm. Several ranks on GPUs keep NCCL on
// loopback.
std::map<std::string, std::string> requested_toggles(const RunSpec& spec);

// Returns the environment variables of resolved toggles; an empty value sets no variable.
std::map<std::string, std::string>
toggle_environment(const std::map<std::string, std::string>& resolved);

// NSA_* variables that our programs read: name, program, purpose. docs/toggles.md lists them.
struct ProgramVariable {
  std::string_view name, program, meaning;
};
const std::vector<ProgramVariable>& program_variables();
bool is_program_variable(std::string_view name);
// Returns whether it belongs to a from_host toggle.
bool is_host_variable(std::string_view name);

struct PredecessorFlag {
  std::string_view name; // for example "NSA_FORCE_SEL_MASK", "--no-gc", "model.n_heads"
  std::string_view ours; // our key ("toggles.attention.kernels"); empty if dropped
  std::string_view why;  // why it was dropped, or how the meaning maps
};
const std::vector<PredecessorFlag>& predecessor_flags();
const PredecessorFlag* find_predecessor_flag(std::string_view name);

} // namespace nsa::spec
