// GPUs of this node that no run gets until a person releases them. The driver has reported broken
// hardware on such a GPU, or two attempts in a row died there. The state machine decides that for a
// run that computes on the GPU (daemon/state). What stands here is written in the transaction of
// the event that it comes from, so it outlives nsad and the machine.
//
// All on the loop's thread. It has nothing to stop.
#pragma once

#include "daemon/run_loop/run_loop.h"
#include "daemon/store/ledger.h"

#include <functional>
#include <map>
#include <string>

namespace nsa::control {

class GpuQuarantine final : public Projection {
public:
  using Entries = std::map<std::string, store::GpuQuarantineRow>; // by UUID

  // `changed` is told before any run can ask for a GPU again.
  GpuQuarantine(Clock& clock, RunLoop& loop, store::Ledger& ledger,
                std::function<void(const Entries&)> changed)
      : clock_(clock), loop_(loop), ledger_(ledger), changed_(std::move(changed)) {
    loop_.attach(static_cast<Projection&>(*this));
  }
  // Once the open runs are loaded. Ledger and runs may differ after a restored backup: what either
  // knows holds.
  Status start();

  const Entries& entries() const { return entries_; }
  // The driver has reported it, and no rank computes on the GPU.
  void add(const std::string& uuid, const std::string& why);
  // `request` is the row of the audit. kConflict: the GPU is not in quarantine.
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
