// Checkpoints, processes and files of a run, as commands need them. This is an interface, so that
// tests of commands need no machine; HostLauncher is the real one.
//
// Calls return at once. `done` is called once, later, on the loop's thread, and never inside the
// call.
#pragma once

#include "common/manifest/manifest.h"
#include "daemon/gpu/nvml.h"
#include "daemon/privilege/host.h"
#include "daemon/run_metrics/run_record.h"

#include <functional>
#include <vector>

namespace nsa::control {

template <class T> using Done = std::function<void(Result<T>)>;

class Launcher {
public:
  virtual ~Launcher() = default;
  virtual void list_gpus(Done<gpu::Gpus> done) = 0;
  // Chooses the newest checkpoint that verifies. This may read gigabytes.
  virtual void choose_checkpoint(const RunRecord& record,
                                 std::vector<manifest::Distrust> distrusted,
                                 Done<manifest::Choice> done) = 0;
  // Error: kNotFound if the worker program is missing; another try cannot succeed.
  virtual Result<privilege::AttemptStart> prepare(const state::Run& run,
                                                  const RunRecord& record) = 0;
  // Starts the shim, or finds the one that an earlier call started for this attempt.
  virtual void start(const RunRecord& record, privilege::AttemptStart start,
                     Done<shim::StartedShim> done) = 0;
  virtual void read_started(const RunRecord& record, AttemptNumber attempt,
                            Done<shim::StartedAttempt> done) = 0;
  virtual void write_summary(const store::RunRow& row, const nlohmann::json& summary,
                             std::function<void(const Status&)> done) = 0;
};

} // namespace nsa::control
