// Summarises a rank's flight record (c10d's JSON, or the CPU mesh's in the same format) in a clause
// for the verdict. It does no I/O.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"

#include <filesystem>
#include <string>
#include <string_view>

namespace nsa::shim::evidence {

std::filesystem::path flight_record_path(const std::filesystem::path& folder, Rank rank);

// "enqueued 812 collectives, completed up to 811; the oldest that is not: 812, nccl:all_reduce,
// 6553600 elements (Float), scheduled". Empty for other JSON. Errors call the text `subject`.
inline constexpr size_t kMaxFlightRecordBytes = size_t{64} << 20;
Result<std::string> summarise_flight_record(std::string_view json, std::string_view subject);

} // namespace nsa::shim::evidence
