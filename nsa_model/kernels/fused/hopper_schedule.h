#pragma once
// The order of launches of the Hopper kernels on two streams. The code that adds a node to the side
// stream says why. Pure, any thread.

#include "nsa_model/kernels/fused/schedule.h"

namespace nsa::kernels {

Schedule hopper_schedule(const AttentionCall& call, Pass pass);

} // namespace nsa::kernels
