// How a rank ends: finished, or with an exit code of the contract (common/wire/exit_code.h) and the
// error that caused it.
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"
#include "common/wire/exit_code.h"
#include "common/wire/words.h"
#include "worker/mesh/mesh.h"

#include <optional>
#include <string>

namespace nsa::train {

struct Failure {
  wire::RankExit exit = wire::RankExit::kFailed;
  Error error;
  std::optional<Rank> blamed; // the rank that caused the failure, if another one did
};

struct Finished {
  uint64_t step = 0, tokens = 0;
  wire::FinishReason reason = wire::FinishReason::kCompleted;
};

template <class T> using RankResult = tl::expected<T, Failure>;

inline tl::unexpected<Failure> failed(wire::RankExit exit, Error error) {
  return tl::unexpected<Failure>(Failure{exit, std::move(error), std::nullopt});
}

inline tl::unexpected<Failure> failed(comm::PeerFailure lost) {
  const std::string next = lost.blamed ? "see the log of rank " + std::to_string(*lost.blamed) : "";
  return tl::unexpected<Failure>(Failure{wire::RankExit::kPeerLost,
                                         {ErrorCode::kUnavailable, std::move(lost.what), next},
                                         lost.blamed});
}

} // namespace nsa::train

// Like NSA_TRY_ASSIGN and NSA_TRY. An error of the Result becomes a Failure with this exit code.
#define NSA_RANK_TRY(exit_code, expression)                                                        \
  do {                                                                                             \
    auto nsa_rank_try_status = (expression);                                                       \
    if (!nsa_rank_try_status)                                                                      \
      return ::nsa::train::failed(exit_code, std::move(nsa_rank_try_status).error());              \
  } while (false)
#define NSA_RANK_TRY_ASSIGN_INNER(result, exit_code, declaration, expression)                      \
  auto result = (expression);                                                                      \
  if (!result) return ::nsa::train::failed(exit_code, std::move(result).error());                  \
  declaration = std::move(*result)
#define NSA_RANK_TRY_ASSIGN(exit_code, declaration, expression)                                    \
  NSA_RANK_TRY_ASSIGN_INNER(NSA_CONCAT(nsa_rank_try_, __LINE__), exit_code, declaration, expression)
