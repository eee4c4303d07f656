#include "worker/comm/leave.h"

#include "common/base/text.h"

namespace nsa::comm {

namespace {

// All ranks but this one have published "<word>/<rank>", within what is left until `end`.
Status wait_for_all(Rendezvous& rendezvous, const std::string& word, Rank self, int world,
                    MonotonicTime end) {
  std::vector<std::string> missing;
  for (Rank rank = 0; rank < world; ++rank) {
    if (rank == self) continue;
    const Duration left =
        std::max(end - MonotonicTime::now(), Duration(std::chrono::milliseconds(1)));
    if (!rendezvous.wait_for(word + "/" + std::to_string(rank), left))
      missing.push_back("rank " + std::to_string(rank));
  }
  if (missing.empty()) return {};
  return fail(ErrorCode::kUnavailable, "did not come to the end: " + join(missing, ", "));
}

} // namespace

Status take_leave(Rendezvous& rendezvous, Rank rank, int world, Duration limit) {
  const MonotonicTime end = MonotonicTime::now() + limit;
  NSA_TRY(rendezvous.publish("done/" + std::to_string(rank), "1"));
  NSA_TRY(wait_for_all(rendezvous, "done", rank, world, end));
  NSA_TRY(rendezvous.publish("left/" + std::to_string(rank), "1"));
  return rank == 0 ? wait_for_all(rendezvous, "left", rank, world, end) : Status();
}

} // namespace nsa::comm
