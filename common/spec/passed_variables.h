// The variables of the submitter's environment that may be passed to ranks (run.pass_environment).
// It is a list of allowed names, because a list of dangerous ones would never be complete. No I/O.
#pragma once

#include "common/spec/field.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::spec {

struct PassedVariable {
  std::string_view name; // ends in '*': every name with this prefix
  std::string_view meaning;
};
const std::vector<PassedVariable>& passed_variables();

// Returns why this variable may not be passed; nullopt if it may.
std::optional<Fault> check_passed_variable(std::string_view name);

} // namespace nsa::spec
