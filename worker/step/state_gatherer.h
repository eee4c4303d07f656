// If each rank updates a shard of the parameters, StateGatherer all-gathers the shards. Without
// shards it does nothing. Training thread only.
#pragma once

#include "worker/comm/collectives.h"
#include "worker/optimizer/flat_state.h"
#include "worker/runtime/stopwatch.h"

namespace nsa::train {

class StateGatherer {
public:
  StateGatherer(FlatState& state, comm::Collectives& collectives)
      : state_(state), collectives_(collectives) {}

  bool needed() const { return state_.shard().of > 1; }
  // After an update, all-gathers the weights that the model computes with. Adds a pair of marks
  // around it to `waits`.
  comm::Outcome weights(uint64_t step, runtime::Stopwatch& waits);
  // Before a checkpoint, all-gathers masters and moments.
  comm::Outcome masters_and_moments(uint64_t step);

private:
  comm::Outcome gather(const std::vector<at::Tensor>& flat, uint64_t step, comm::Kind kind);

  FlatState& state_;
  comm::Collectives& collectives_;
};

} // namespace nsa::train
