#include "worker/mesh/leave.h"

#include "common/base/text.h"

#include <algorithm>

namespace nsa::comm {

namespace {

// Minimum time for each rank. A rank may have published long ago, even if waiting for another one
// has used up the limit.
constexpr Duration kAnswerTime = std::chrono::seconds(2);

// Returns those of `ranks` that do not publish "<word>/<rank>" within `limit`, or kAnswerTime for
// each.
Result<std::vector<Rank>> missing_of(Rendezvous& rendezvous, const std::string& word,
                                     const std::vector<Rank>& ranks, Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  std::vector<Rank> missing;
  for (const Rank rank : ranks) {
    const Duration left = std::max(end - MonotonicTime::now(), kAnswerTime);
    const auto said = rendezvous.wait_for(word + "/" + std::to_string(rank), left);
    if (said) continue;
    if (said.error().code == ErrorCode::kUnavailable) // the server is gone, so no key can arrive
      return fail(ErrorCode::kUnavailable, "rank 0, which serves the rendezvous, is gone");
    missing.push_back(rank);
  }
  return missing;
}

} // namespace

Status take_leave(Rendezvous& rendezvous, Rank rank, int world, Duration limit) {
  std::vector<Rank> peers;
  for (Rank peer = 0; peer < world; ++peer)
    if (peer != rank) peers.push_back(peer);
  NSA_TRY(rendezvous.publish("done/" + std::to_string(rank), "1"));
  NSA_TRY_ASSIGN(std::vector<Rank> gone, missing_of(rendezvous, "done", peers, limit));
  NSA_TRY(rendezvous.publish("left/" + std::to_string(rank), "1"));
  if (rank == 0) {
    // The other ranks use rank 0's store until they stop waiting for missing ranks. They may have
    // begun later than rank 0.
    std::erase_if(peers, [&](Rank peer) { return std::count(gone.begin(), gone.end(), peer) > 0; });
    NSA_TRY_ASSIGN(const auto staying, missing_of(rendezvous, "left", peers, limit));
    gone.insert(gone.end(), staying.begin(), staying.end());
  }
  if (gone.empty()) return {};
  std::vector<std::string> names;
  for (const Rank peer : gone)
    names.push_back("rank " + std::to_string(peer));
  return fail(ErrorCode::kUnavailable, "did not come to the end: " + join(names, ", "));
}

} // namespace nsa::comm
