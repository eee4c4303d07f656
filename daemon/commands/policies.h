// Converts a run file's settings for restarts and hangs into the state machine's. Pure.
#pragma once

#include "common/spec/run_spec.h"
#include "daemon/state/state.h"

namespace nsa::control {

state::Policy policy_of(const spec::RunSpec& spec, uint64_t jitter_seed);

} // namespace nsa::control
