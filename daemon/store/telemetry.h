// The losses of runs in a database of their own (telemetry.db, synchronous=NORMAL), written in
// batches by a separate thread. So no state change waits for its disk. A run that is missing in the
// ledger gets its curve back from here. metrics.jsonl in the run's folder holds the whole record of
// its steps.
//
// Any thread may call add(), which never blocks on the disk. Beyond kMaxQueued records the oldest
// are dropped and counted. The destructor writes the queue and joins the thread.
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

  // Stores steps of rank 0 only.
  void add(const RunId& run, AttemptNumber attempt, const wire::RankStep& step);
  void add(const RunId& run, AttemptNumber attempt, const wire::RankEvaluation& evaluation);
  void remove(const RunId& run);
  TelemetryCounts counts() const;

  // Stored losses of a run, oldest first; for a repeated step, those of the last attempt. The calls
  // wait for a batch that is being written, so make them only at start.
  Result<std::vector<StepPoint>> losses(const RunId& run, int64_t newest);
  Result<std::vector<StepPoint>> heldout_losses(const RunId& run, int64_t newest);

private:
  struct Writer;
  explicit Telemetry(std::unique_ptr<Writer> writer);
  std::unique_ptr<Writer> writer_;
};

} // namespace nsa::store
