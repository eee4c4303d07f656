// Reports effective toggles beside the requested ones. It reads environment variables and nothing
// else.
#pragma once

#include "common/base/result.h"
#include "common/wire/messages.h"
#include "nsa_model/choice/kernel_plan.h"

#include <map>
#include <string>

namespace nsa::train {

// Key in the report's kernels that says how passes are launched: "on" as graphs, otherwise "off".
inline constexpr const char* kGraphsPart = "graphs";

// `requested` are resolved toggles, with defaults filled in. `graphs` is "on", "off", or "off
// (why)".
wire::RankToggles report_toggles(Rank rank, const std::map<std::string, std::string>& requested,
                                 const choice::KernelPlan& kernels, const std::string& graphs);

// Error: kConflict names every toggle whose effective value is not the requested one ("auto"
// requests none). Such an attempt does not train, because its measurements could not be interpreted
// later.
Status check_toggles(const wire::RankToggles& report);

} // namespace nsa::train
