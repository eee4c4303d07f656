// The GPUs of this nsad's node, and of those that have joined it, as the API shows them. Plain
// values.
#pragma once

#include "common/base/choice_or_text.h"
#include "common/base/ids.h"
#include "common/wire/json_members.h"
#include "common/wire/time.h"

#include <string>

namespace nsa::wire {

enum class GpuStatus : uint8_t {
  kFree,
  kUsed,       // a run has it
  kForeign,    // another program computes on it, or another nsad has it
  kQuarantine, // no run gets it until a person releases it; one may still hold it
  kKeptOut,    // by nsad.toml or by nsad's environment
};
constexpr auto choice_names(GpuStatus) {
  return names_of("free", "used", "foreign", "quarantine", "kept-out");
}

struct GpuView {
  std::string node; // that has joined; empty: this nsad's own
  int index = 0;
  std::string uuid, name;
  uint64_t memory_bytes = 0;
  ChoiceOrText<GpuStatus> state;
  RunId run;                // that holds it; empty: none of this nsad's
  std::string why;          // of its state, where that needs a reason
  Time quarantined_at;      // 0: it is not in quarantine
  RunId quarantined_by_run; // whose attempt showed the fault; empty: none computed on it
};

NSA_DECLARE_JSON(GpuView);

} // namespace nsa::wire
