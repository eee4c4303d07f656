#pragma once
// The order of launches of the Hopper kernels. Two streams: what the side one does is said where
// its nodes are made. Pure, any thread.

#include "nsa_model/kernels/fused/schedule.h"

namespace nsa::kernels {

Schedule hopper_schedule(const AttentionCall& call, Pass pass);

} // namespace nsa::kernels
