// GPUs of this node that no run gets until a person releases them. Either the driver reported
// broken hardware on the GPU, or two attempts in a row died there. The state machine decides that
// for a run that computes on the GPU (daemon/state). The transaction that stores the event also
// stores its quarantine, so the quarantine outlives nsad and the machine.
//
// All functions run on the loop's thread. There is nothing to stop.
#pragma once

#include "daemon/run_loop/run_loop.h"
#include "daemon/store/ledger.h"

#include <functional>
#include <map>
#include <string>

namespace nsa::control {

class GpuQuarantine final : public Projection {
public:
  using Entries = std::map<std::string, store::GpuQuarantineRow>; // UUID -> row

  // nsad calls `changed` before any run can ask for a GPU again.
  GpuQuarantine(Clock& clock, RunLoop& loop, store::Ledger& ledger,
                std::function<void(const Entries&)> changed)
      : clock_(clock), loop_(loop), ledger_(ledger), changed_(std::move(changed)) {
    loop_.attach(static_cast<Projection&>(*this));
  }
  // Call it after the open runs are loaded. Ledger and runs may differ after a backup was restored.
  // A quarantine that either of them knows is kept.
  Status start();

  const Entries& entries() const { return entries_; }
  // Adds a GPU whose hardware the driver reports as broken. If a run has the GPU, its state machine
  // stores the quarantine.
  void add(const std::string& uuid, const std::string& why);
  // `request` is the row for the audit. Fails with kConflict if the GPU is not in quarantine.
  Status release(const std::string& uuid, store::AuditRow request);

  void project(const state::State& state, const state::Event& event, WallTime now,
               store::Batch& batch) override;
  void project(const state::Note&) override {}
  void add_rows(const state::State&, const std::set<RunId>&, store::Batch&) override {}

private:
  void enter(store::GpuQuarantineRow row, store::Batch& batch);
  void note(std::string_view kind, wire::Severity severity, std::string text,
            const std::string& uuid);

  Clock& clock_;
  RunLoop& loop_;
  store::Ledger& ledger_;
  std::function<void(const Entries&)> changed_;
  Entries entries_;
};

} // namespace nsa::control
