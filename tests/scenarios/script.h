// Reads scenario files (README.md) into steps.
#pragma once

#include "common/base/result.h"
#include "daemon/state/event.h"

#include <map>
#include <string>
#include <vector>

namespace nsa::state {

struct Step {
  enum class Kind { kUp, kEvent, kAfter, kGone, kPending } kind = Kind::kEvent;
  int line = 0;
  Event event;                       // kEvent
  RunId run;                         // kUp, kGone
  nlohmann::json options;            // kUp: of Submitted
  double seconds = 0;                // kAfter
  std::vector<std::string> commands; // "->"
  std::string phases;                // "=>"
  std::vector<std::string> reasons;  // "~"
  std::vector<std::string> notes;    // "!"
  std::vector<std::string> slots;    // "on"
  bool ignored = false;
};

Result<std::vector<Step>> read_script(const std::string& text);

} // namespace nsa::state
