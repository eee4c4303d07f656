// What ranks took at the stages of an attempt, beside the estimate. Pure.
#pragma once

#include "cli/render/run_views.h"
#include "common/wire/api_types.h"
#include "common/wire/rank_messages.h"

#include <string>
#include <vector>

namespace nsa::render {

// Of the reports among a run's events those of one attempt, in the order in which they came. A
// report that came twice is there once.
std::vector<wire::RankMemory> stage_memory(const std::vector<wire::EventView>& events,
                                           AttemptNumber attempt);

// A row for each stage and measure, a column for each rank. Device figures only where a rank has
// any.
std::string memory_table(const std::vector<wire::RankMemory>& reports, const ViewOptions& options);

// "estimate 1.2 GiB a rank, 1.1 GiB came (8 % less)"; empty: there is no estimate. Against the
// largest peak of a device, and without one against the largest resident memory.
std::string memory_against_estimate(const std::vector<wire::RankMemory>& reports,
                                    const nlohmann::json& estimate);

} // namespace nsa::render
