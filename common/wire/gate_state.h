// The words of GateView::state: not judged yet, or how the newest window was judged.
#pragma once

#include "common/wire/api_types.h"

#include <optional>

namespace nsa::wire {

enum class GateState : uint8_t { kWaiting, kPassed, kFailed };
constexpr auto choice_names(GateState) {
  return names_of("waiting", "passed", "failed");
}

// Nothing: nsad is of another version and has more words.
inline std::optional<GateState> state_of(const GateView& gate) {
  return choice_from<GateState>(gate.state);
}

} // namespace nsa::wire
