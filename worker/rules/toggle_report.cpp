#include "worker/rules/toggle_report.h"

#include "common/base/text.h"
#include "common/spec/toggles.h"

#include <cstdlib>
#include <set>

namespace nsa::train {

namespace {

constexpr const char* kAttentionKernels = "attention.kernels";
constexpr const char* kLayerKernels = "layers.kernels";
constexpr const char* kGraphs = "cuda.graphs";
constexpr const char* kEmbeddingGradient = "layers.embedding_gradient";
constexpr const char* kAnyChoice = "auto";
constexpr const char* kDenseBackend = "attention.dense";

// "aten" from {"compressed": "aten", "selected": "aten"}; "aten+fused" when branches differ. What
// follows the first word ("aten sdpa") is detail, not another choice.
std::string kernels_in_effect(const std::map<std::string, std::string>& kernels) {
  std::set<std::string> distinct;
  for (const char* part : {"compressed", "selected", "sliding", "dense"})
    if (const auto kernel = kernels.find(part); kernel != kernels.end())
      distinct.insert(split(kernel->second, ' ').front());
  return join({distinct.begin(), distinct.end()}, "+");
}

// "flash" from {"dense": "aten flash (no cuDNN is loaded)"}, "fused" from "fused hopper". Whatever
// was asked for is in effect where nothing is dense.
std::string dense_in_effect(const std::map<std::string, std::string>& kernels,
                            const std::string& requested) {
  const auto dense = kernels.find("dense");
  if (dense == kernels.end()) return requested;
  const auto words = split(dense->second, ' ');
  return words.front() == "fused" ? words.front() : words.at(1);
}

std::string environment_value(const std::string& variable) {
  const char* value = std::getenv(variable.c_str());
  return value == nullptr ? "" : value;
}

} // namespace

wire::RankToggles report_toggles(Rank rank, const std::map<std::string, std::string>& requested,
                                 const std::map<std::string, std::string>& kernels) {
  wire::RankToggles report;
  report.rank = rank;
  report.kernels = kernels;
  const auto environment = spec::toggle_environment(requested);
  for (const auto& [name, value] : requested) {
    const spec::Toggle* toggle = spec::find_toggle(name);
    std::string effective = value;
    const auto of_part = [&](const char* part) {
      const auto found = kernels.find(part);
      return found == kernels.end() ? std::string("unset") : split(found->second, ' ').front();
    };
    if (name == kAttentionKernels) {
      effective = kernels_in_effect(kernels);
    } else if (name == kLayerKernels) {
      effective = of_part(kLayersPart);
    } else if (name == kGraphs) {
      effective = of_part(kGraphsPart);
    } else if (name == kEmbeddingGradient) {
      effective = of_part(kEmbeddingPart);
      if (effective == "unset") effective = "separate"; // no kernels around attention
    } else if (name == kDenseBackend) {
      effective = dense_in_effect(kernels, value);
    } else if (toggle != nullptr && !toggle->variable.empty()) {
      // In effect is what this process was started with, not what the spec wants it to be.
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
    if (t.requested != t.effective && t.requested != kAnyChoice)
      differing += (differing.empty() ? "" : ", ") + t.name + " (requested " + t.requested +
                   ", in effect " + t.effective + ")";
  if (differing.empty()) return {};
  return fail(ErrorCode::kConflict, "toggles are not in effect as requested: " + differing,
              "change the request in [toggles], or the environment of the ranks");
}

} // namespace nsa::train
