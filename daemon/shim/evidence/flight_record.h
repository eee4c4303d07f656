// What a rank's flight recorder says (c10d's JSON, or the CPU mesh's in the same format), in a
// clause for the verdict. The reading is pure.
#pragma once

#include "common/base/ids.h"

#include <filesystem>
#include <string>
#include <string_view>

namespace nsa::shim::evidence {

std::filesystem::path flight_record_path(const std::filesystem::path& folder, Rank rank);

// "enqueued 812 collectives, completed up to 811; the oldest that is not: 812, nccl:all_reduce,
// 6553600 elements (Float), scheduled". Empty for what is no such record.
std::string summarise_flight_record(std::string_view json);

} // namespace nsa::shim::evidence
