// What each rank measured of a row, told to all of them.
#pragma once

#include "common/base/json.h"
#include "worker/comm/collectives.h"

#include <vector>

namespace nsa::bench {

struct RankFigures {
  double step_milliseconds = 0;   // median
  double communication_share = 0; // of the steps' time: exposed, so not hidden by the backward pass
  double peak_allocated_gib = 0, reserved_gib = 0;
};

// Of all ranks, in their order. `number`: another one for each call, the same on all ranks.
std::vector<RankFigures> gather_figures(const RankFigures& own, comm::Collectives& collectives,
                                        at::Device device, uint64_t number);

nlohmann::ordered_json to_json(const std::vector<RankFigures>& ranks);

} // namespace nsa::bench
