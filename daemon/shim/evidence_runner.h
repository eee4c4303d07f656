// Runs nsa-evidence (daemon/shim/evidence) for a request and passes on its result. It is a helper
// process, because reading symbol tables takes seconds and hundreds of megabytes, and unwinding a
// broken process may crash. Neither may happen to the ranks' parent. One request at a time; the
// others wait. One thread (the shim's loop).
#pragma once

#include "common/wire/messages.h"
#include "daemon/proc/launch.h"
#include "daemon/shim/event_loop.h"

#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace nsa::shim {

class EvidenceRunner {
public:
  using OnDone = std::function<void(std::string body)>; // JSON of an EvidenceTaken
  // `folder` is <attempt folder>/evidence. When a request starts, `ranks` gives the ranks, and
  // `on_start` gets the folder for the ranks' own part of the evidence. `nccl_ras` is the address
  // of the ranks' NCCL RAS service; empty: they have none.
  EvidenceRunner(EventLoop& loop, std::filesystem::path folder, std::string nccl_ras,
                 std::function<std::vector<wire::RankIdentity>()> ranks,
                 std::function<void(const std::filesystem::path& folder)> on_start, OnDone on_done)
      : loop_(loop), folder_(std::move(folder)), nccl_ras_(std::move(nccl_ras)),
        ranks_(std::move(ranks)), on_start_(std::move(on_start)), on_done_(std::move(on_done)) {}
  ~EvidenceRunner();
  EvidenceRunner(const EvidenceRunner&) = delete;
  EvidenceRunner& operator=(const EvidenceRunner&) = delete;

  // Idempotent: an id that waits or runs is not taken twice, and a finished one is reported again.
  void request(wire::TakeEvidence request);
  bool busy() const { return child_.pid > 0; }
  pid_t pid() const { return child_.pid; }
  void on_child_ended(); // the helper has ended: reaps it and reports

private:
  void start_next();
  void report(const std::string& error);

  EventLoop& loop_;
  std::filesystem::path folder_;
  std::string nccl_ras_;
  std::function<std::vector<wire::RankIdentity>()> ranks_;
  std::function<void(const std::filesystem::path& folder)> on_start_;
  OnDone on_done_;
  std::deque<wire::TakeEvidence> waiting_; // the first one runs while busy()
  proc::ChildProcess child_;
  std::optional<EventLoop::Timer> limit_;
  MonotonicTime began_;
};

} // namespace nsa::shim
