#include "daemon/nodes/gpu_quarantine.h"

#include "common/base/log.h"

#include <algorithm>
#include <vector>

namespace nsa::control {

Status GpuQuarantine::start() {
  NSA_TRY_ASSIGN(const auto rows, ledger_.gpu_quarantine());
  for (const store::GpuQuarantineRow& row : rows)
    entries_[row.uuid] = row;
  std::vector<state::Event> unknown; // quarantines that the run's state lacks
  for (const auto& [id, run] : loop_.state().runs) {
    for (const auto& [uuid, why] : run.quarantine)
      if (entries_.count(uuid) == 0)
        enter({uuid, why, id, clock_.wall().nanoseconds, false}, loop_.batch());
    for (const std::string& slot : run.slots)
      if (const auto known = entries_.find(slot);
          known != entries_.end() && run.quarantine.count(slot) == 0)
        unknown.push_back({id, 0, 0, state::GpuQuarantined{slot, known->second.why}});
  }
  for (const state::Event& event : unknown)
    loop_.handle(event);
  changed_(entries_);
  return {};
}

void GpuQuarantine::enter(store::GpuQuarantineRow row, store::Batch& batch) {
  log::error("gpu", "a GPU is in quarantine", {{"gpu", row.uuid}, {"why", row.why}});
  batch.gpu_quarantine.push_back(row);
  entries_[row.uuid] = std::move(row);
  changed_(entries_);
}

void GpuQuarantine::project(const state::State& state, const state::Event& event, WallTime now,
                            store::Batch& batch) {
  const auto found = state.runs.find(event.run);
  if (found == state.runs.end()) return;
  for (const auto& [uuid, why] : found->second.quarantine)
    if (entries_.count(uuid) == 0) enter({uuid, why, event.run, now.nanoseconds, false}, batch);
}

void GpuQuarantine::note(std::string_view kind, wire::Severity severity, std::string text,
                         const std::string& uuid) {
  loop_.note(store::note_row(clock_.wall().nanoseconds, "", 0, ChoiceOrText<wire::EventKind>(kind),
                             severity, std::move(text), {{"uuid", uuid}}));
}

void GpuQuarantine::add(const std::string& uuid, const std::string& why) {
  if (entries_.count(uuid) != 0) return;
  for (const auto& [id, run] : loop_.state().runs)
    if (std::find(run.slots.begin(), run.slots.end(), uuid) != run.slots.end())
      return loop_.submit({id, 0, 0, state::GpuQuarantined{uuid, why}});
  enter({uuid, why, "", clock_.wall().nanoseconds, false}, loop_.batch());
  note(state::GpuQuarantined::kKind, wire::Severity::kError,
       "GPU " + uuid + " is in quarantine: " + why + "; no run gets it until nsactl gpu release",
       uuid);
  loop_.flush();
}

Status GpuQuarantine::release(const std::string& uuid, store::AuditRow request) {
  const auto found = entries_.find(uuid);
  if (found == entries_.end())
    return fail(ErrorCode::kConflict, "GPU " + uuid + " is not in quarantine", "see nsactl gpu ls");
  std::vector<RunId> holders;
  for (const auto& [id, run] : loop_.state().runs)
    if (run.quarantine.count(uuid) != 0) holders.push_back(id);
  for (const RunId& id : holders)
    loop_.handle({id, 0, 0, state::GpuReleased{uuid, request.user}});
  if (holders.empty())
    note(state::GpuReleased::kKind, wire::Severity::kInfo,
         "GPU " + uuid + " was released from quarantine by " + request.user, uuid);
  store::GpuQuarantineRow row = found->second;
  row.is_over = true;
  loop_.batch().gpu_quarantine.push_back(std::move(row));
  loop_.batch().audit.push_back(std::move(request));
  entries_.erase(found);
  changed_(entries_);
  loop_.flush();
  return {};
}

} // namespace nsa::control
