// Checks whether a toggle that a rank reports has the requested value. Both nsad and the rank use
// it.
#pragma once

#include "common/wire/rank_messages.h"

namespace nsa::wire {

// "auto", or no request, lets the rank choose the value. Values are texts, because each toggle has
// its own words, and a rank of another version may have more.
inline bool is_as_requested(const EffectiveToggle& toggle) {
  return toggle.requested.empty() || toggle.requested == "auto" ||
         toggle.requested == toggle.effective;
}

} // namespace nsa::wire
