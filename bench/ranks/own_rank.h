// Which rank of a program this process is, from the environment variables of rank_processes.h.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"

#include <filesystem>
#include <optional>

namespace nsa::bench {

inline constexpr const char* kRankVariable = "NSA_BENCH_RANK";
inline constexpr const char* kRendezvousVariable = "NSA_BENCH_RENDEZVOUS";

struct OwnRank {
  Rank rank = 0;
  std::filesystem::path rendezvous; // the folder in which the ranks meet
};

// Returns std::nullopt if this process is not a rank. The error is kInvalidArgument if the
// variables do not fit a world of `world` ranks.
Result<std::optional<OwnRank>> own_rank(int world);

} // namespace nsa::bench
