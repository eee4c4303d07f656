// The figures that each rank measured for a row, exchanged between all ranks.
#pragma once

#include "common/base/json.h"
#include "worker/comm/collectives.h"

#include <vector>

namespace nsa::bench {

struct RankFigures {
  double step_milliseconds = 0;   // median
  double communication_share = 0; // fraction of the steps' time that is exposed communication
  double peak_allocated_gib = 0, reserved_gib = 0;
};

// Returns the figures of all ranks in rank order. `number` must differ for each call and be the
// same on all ranks.
std::vector<RankFigures> gather_figures(const RankFigures& own, comm::Collectives& collectives,
                                        at::Device device, uint64_t number);

nlohmann::ordered_json to_json(const std::vector<RankFigures>& ranks);

} // namespace nsa::bench
