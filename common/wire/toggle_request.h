// Whether a toggle that a rank reports is what was asked for: nsad and the rank itself look.
#pragma once

#include "common/wire/rank_messages.h"

namespace nsa::wire {

// "auto", or no request, leaves the value to the rank. Texts: each toggle has words of its own, and
// a rank of another version may have more.
inline bool is_as_requested(const EffectiveToggle& toggle) {
  return toggle.requested.empty() || toggle.requested == "auto" ||
         toggle.requested == toggle.effective;
}

} // namespace nsa::wire
