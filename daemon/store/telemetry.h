// Step metrics and evaluations in a database of their own (telemetry.db, synchronous=NORMAL),
// written in batches by a thread of its own: however slow its disk is, no state change waits for
// it.
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

  void add(const RunId& run, AttemptNumber attempt, const wire::RankStep& step);
  void add(const RunId& run, AttemptNumber attempt, const wire::RankEvaluation& evaluation);
  void remove(const RunId& run);
  TelemetryCounts counts() const;

  // Training losses of rank 0 by step, of a repeated step the last attempt's: what was written when
  // this was opened. Reads with a connection of its own, so call it at start only.
  static Result<std::vector<StepPoint>> read_losses(const std::filesystem::path& folder,
                                                    const RunId& run, int64_t newest);

private:
  struct Writer;
  explicit Telemetry(std::unique_ptr<Writer> writer);
  std::unique_ptr<Writer> writer_;
};

} // namespace nsa::store
