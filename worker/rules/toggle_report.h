// The effective toggles, beside the requested ones. Pure but for reading environment variables.
#pragma once

#include "common/base/result.h"
#include "common/wire/messages.h"
#include "nsa_model/choice/kernel_plan.h"

#include <map>
#include <string>

namespace nsa::train {

// How forward and backward passes reach the device, among the kernels in a report: "on" as graphs,
// else "off".
inline constexpr const char* kGraphsPart = "graphs";

// `requested`: resolved toggles, defaults filled in. `graphs`: "on", "off", or "off (why)".
wire::RankToggles report_toggles(Rank rank, const std::map<std::string, std::string>& requested,
                                 const choice::KernelPlan& kernels, const std::string& graphs);

// kConflict naming every toggle whose effective value is not the requested one ("auto" requests
// none): such an attempt does not train, since nobody could say later what was measured.
Status check_toggles(const wire::RankToggles& report);

} // namespace nsa::train
