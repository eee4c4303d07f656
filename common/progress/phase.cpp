#include "common/progress/phase.h"

namespace nsa::progress {

std::string_view phase_name(Phase phase) {
  const auto index = static_cast<size_t>(phase);
  return index < kPhaseNames.size() ? kPhaseNames[index] : "unknown";
}

std::optional<Phase> phase_from_name(std::string_view name) {
  for (size_t i = 0; i < kPhaseNames.size(); ++i)
    if (kPhaseNames[i] == name) return static_cast<Phase>(i);
  return std::nullopt;
}

} // namespace nsa::progress
