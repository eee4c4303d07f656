// The variables of the submitter's environment that may reach the ranks (run.pass_environment). It
// is a list of allowed names, since a list of dangerous ones would never be complete. Pure.
#pragma once

#include "common/spec/field.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

struct PassedVariable {
  std::string_view name; // ends in '*': every name that begins so
  std::string_view meaning;
};
const std::vector<PassedVariable>& passed_variables();

// Why this variable may not be passed; nothing when it may.
std::optional<Fault> check_passed_variable(std::string_view name);

} // namespace nsa::spec
