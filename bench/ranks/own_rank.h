// Which of a program's ranks this process is, as rank_processes.h tells it by its environment.
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

// Nothing where this process is nobody's rank. kInvalidArgument: the variables say nothing that
// fits a world of `world` ranks.
Result<std::optional<OwnRank>> own_rank(int world);

} // namespace nsa::bench
