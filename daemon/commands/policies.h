// Turns a run file's settings for restarts and hangs into those of the state machine and the hang
// detector. Pure.
#pragma once

#include "common/spec/run_spec.h"
#include "daemon/state/hang.h"
#include "daemon/state/state.h"

namespace nsa::control {

state::Policy policy_of(const spec::RunSpec& spec, uint64_t jitter_seed);
state::HangPolicy hang_policy_of(const spec::RunSpec& spec);

} // namespace nsa::control
