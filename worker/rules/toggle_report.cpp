#include "worker/rules/toggle_report.h"

#include "common/base/text.h"
#include "common/spec/toggles.h"
#include "common/wire/toggle_request.h"

#include <cstdlib>

namespace nsa::train {

namespace {

std::string environment_value(const std::string& variable) {
  const char* value = std::getenv(variable.c_str());
  return value == nullptr ? "" : value;
}

} // namespace

wire::RankToggles report_toggles(Rank rank, const std::map<std::string, std::string>& requested,
                                 const choice::KernelPlan& kernels, const std::string& graphs) {
  wire::RankToggles report;
  report.rank = rank;
  report.kernels = choice::report_of(kernels);
  report.kernels[kGraphsPart] = graphs;
  auto decided = choice::effective_toggles(kernels);
  decided["cuda.graphs"] = split(graphs, ' ').front();
  const auto environment = spec::toggle_environment(requested);
  for (const auto& [name, value] : requested) {
    const spec::Toggle* toggle = spec::find_toggle(name);
    std::string effective = value;
    if (const auto found = decided.find(name); found != decided.end()) {
      effective = found->second;
    } else if (toggle != nullptr && !toggle->variable.empty()) {
      // The effective value is what this process was started with, which may differ from the spec.
      const std::string variable(toggle->variable);
      const auto wanted = environment.find(variable);
      const std::string expected = wanted == environment.end() ? "" : wanted->second;
      const std::string actual = environment_value(variable);
      if (actual != expected) effective = actual.empty() ? "unset" : actual;
    }
    report.toggles.push_back({name, value, effective});
  }
  return report;
}

Status check_toggles(const wire::RankToggles& report) {
  std::string differing;
  for (const wire::EffectiveToggle& t : report.toggles)
    if (!is_as_requested(t))
      differing += (differing.empty() ? "" : ", ") + t.name + " (requested " + t.requested +
                   ", in effect " + t.effective + ")";
  if (differing.empty()) return {};
  return fail(ErrorCode::kConflict, "toggles are not in effect as requested: " + differing,
              "change the request in [toggles], or the environment of the ranks");
}

} // namespace nsa::train
