// The GPUs of this nsad's node, and of nodes that have joined it, in the API. Plain values.
#pragma once

#include "common/base/choice_or_text.h"
#include "common/base/ids.h"
#include "common/wire/json_members.h"
#include "common/wire/time.h"

#include <string>

namespace nsa::wire {

enum class GpuStatus : uint8_t {
  kFree,
  kUsed,       // a run uses it
  kForeign,    // another program or another nsad uses it
  kQuarantine, // no run gets it until a user releases it; a run may still use it
  kKeptOut,    // excluded by nsad.toml or by nsad's environment
};
constexpr auto choice_names(GpuStatus) {
  return names_of("free", "used", "foreign", "quarantine", "kept-out");
}

struct GpuView {
  std::string node; // node that has joined; empty: this nsad's own
  int index = 0;
  std::string uuid, name;
  uint64_t memory_bytes = 0;
  ChoiceOrText<GpuStatus> state;
  RunId run;                // run that uses it; empty: none of this nsad's
  std::string why;          // why it is in this state, if that needs a reason
  Time quarantined_at;      // 0: not in quarantine
  RunId quarantined_by_run; // run whose attempt showed the fault; empty: none ran on it
};

NSA_DECLARE_JSON(GpuView);

} // namespace nsa::wire
