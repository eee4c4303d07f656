// The losses of runs in a database of their own (telemetry.db, synchronous=NORMAL), written in
// batches by a thread of its own: however slow its disk is, no state change waits for it. A run
// that the ledger does not know any more gets its curve back from here. The whole record of its
// steps is metrics.jsonl in its folder.
//
// add() may be called from any thread and never blocks on the disk; beyond kMaxQueued records the
// oldest are dropped and counted. The destructor writes what is queued and joins the thread.
#pragma once

#include "common/base/result.h"
#include "common/wire/messages.h"

#include <filesystem>
#include <memory>
#include <vector>

namespace nsa::store {

struct StepPoint {
  uint64_t step = 0;
  double loss = 0;
};

struct TelemetryCounts {
  uint64_t written = 0, dropped = 0, failures = 0; // failures: batches that could not be written
  std::string last_error;
};

class Telemetry {
public:
  static constexpr size_t kMaxQueued = 100'000;

  static Result<Telemetry> open(const std::filesystem::path& folder);
  Telemetry(Telemetry&&) noexcept;
  Telemetry& operator=(Telemetry&&) noexcept;
  ~Telemetry();

  void add(const RunId& run, AttemptNumber attempt, const wire::RankStep& step); // of rank 0
  void add(const RunId& run, AttemptNumber attempt, const wire::RankEvaluation& evaluation);
  void remove(const RunId& run);
  TelemetryCounts counts() const;

  // What is written of a run, oldest first; of a repeated step the last attempt's. They wait for a
  // batch that is being written, so call them at start only.
  Result<std::vector<StepPoint>> losses(const RunId& run, int64_t newest);
  Result<std::vector<StepPoint>> heldout_losses(const RunId& run, int64_t newest);

private:
  struct Writer;
  explicit Telemetry(std::unique_ptr<Writer> writer);
  std::unique_ptr<Writer> writer_;
};

} // namespace nsa::store
