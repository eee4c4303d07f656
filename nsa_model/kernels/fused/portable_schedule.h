#pragma once
// The order of launches of the portable kernels (portable/attend/attend.h), one after another on
// the caller's stream. Pure, any thread.

#include "nsa_model/kernels/fused/schedule.h"

namespace nsa::kernels {

Schedule portable_schedule(const AttentionCall& call, Pass pass);

} // namespace nsa::kernels
