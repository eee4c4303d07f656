// Connects the model's context group to the collectives: which ranks share this one's sequences
// (parallel.context_ranks), and how they exchange heads.
#pragma once

#include "nsa_model/model/context_group.h"
#include "worker/comm/collectives.h"

#include <functional>

namespace nsa::train {

// Groups are consecutive ranks: 0 to n - 1, n to 2n - 1, ...
comm::RankRange context_range(Rank rank, int context_ranks);

// Returns null if context_ranks is 1. `step` returns the training thread's current step. A failed
// exchange throws comm::PeerLost. The group keeps a reference to `collectives`.
model::SharedGroup make_context_group(comm::Collectives& collectives, int context_ranks,
                                      std::function<uint64_t()> step);

} // namespace nsa::train
