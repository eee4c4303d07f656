// Labels of a run that may change at any time: its name, note and tags. Pure functions.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "common/spec/run_spec.h"

#include <string>
#include <vector>

namespace nsa::control {

// The section [run] of a stored run file after `overrides` ("run.note=..."). kInvalidArgument names
// the first key that is not one of the three, or whose value is wrong.
Result<spec::RunSection> change_run_section(const nlohmann::json& stored,
                                            const std::vector<std::string>& overrides);

// `all` followed by `more`, without the earlier overrides whose key is set again.
std::vector<std::string> join_overrides(std::vector<std::string> all,
                                        const std::vector<std::string>& more);

} // namespace nsa::control
