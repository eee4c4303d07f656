// Memory that ranks used at the stages of an attempt, beside the estimate. Pure.
#pragma once

#include "cli/render/run_views.h"
#include "common/wire/api_types.h"
#include "common/wire/rank_messages.h"

#include <string>
#include <vector>

namespace nsa::render {

// Returns the reports of one attempt among a run's events, in the order in which they came. A
// repeated report appears once.
std::vector<wire::RankMemory> stage_memory(const std::vector<wire::EventView>& events,
                                           AttemptNumber attempt);

// Returns a table with a row for each stage and measure, and a column for each rank. It has device
// figures only if a rank has some.
std::string memory_table(const std::vector<wire::RankMemory>& reports, const ViewOptions& options);

// Returns a text such as "estimate 1.2 GiB a rank, 1.1 GiB came (8 % less)", or an empty one if
// there is no estimate. It compares the largest peak of a device, or the largest resident memory if
// there is no device.
std::string memory_against_estimate(const std::vector<wire::RankMemory>& reports,
                                    const nlohmann::json& estimate);

} // namespace nsa::render
