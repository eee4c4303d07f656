#include "common/base/text.h"
#include "daemon/requests/run_requests.h"
#include "daemon/requests/set_rules.h"
#include "daemon/run_metrics/shown_run.h"

namespace nsa::control {

Status RunRequests::set(const RunId& run, const wire::SetRequest& request,
                        const api::Caller& caller) {
  return audited(caller, "set", run, change(run, request.overrides, caller));
}

// Name, note and tags only label a run, so they may change in any state. A resume keeps them as it
// keeps --set.
Status RunRequests::change(const RunId& id, const std::vector<std::string>& overrides,
                           const api::Caller& caller) {
  const state::Run* open = find_open(id);
  NSA_TRY_ASSIGN(auto stored, tools_.ledger.run(id));
  if (!stored) return fail(ErrorCode::kNotFound, "no run " + id, "see nsactl ls --all");
  if (!stored->damage.empty())
    return fail(ErrorCode::kCorrupt, "what nsad stored of run " + id + " is damaged",
                "look at it: nsactl events " + id);
  store::RunRow row = open ? tools_.metrics.at(id).row : std::move(stored->row);
  NSA_TRY_ASSIGN(const spec::RunSection changed, change_run_section(row.spec, overrides));
  if (changed.name != row.name && is_run_id(changed.name) &&
      tools_.ledger.run(changed.name).value_or(std::nullopt))
    return fail(ErrorCode::kConflict, "run.name: \"" + changed.name + "\" is the id of a run",
                "give another name: --name " + changed.name + "-2");
  row.name = changed.name;
  row.spec["run"]["name"] = changed.name;
  row.spec["run"]["note"] = changed.note;
  row.spec["run"]["tags"] = changed.tags;
  row.overrides = join_overrides(std::move(row.overrides), overrides);
  if (open) {
    RunRecord& record = tools_.metrics.at(id);
    record.row = row;
    record.spec.run = changed;
    tools_.loop.touch(id);
  } else {
    store::RunProgressRow& progress = stored->progress;
    NSA_TRY_ASSIGN(wire::RunSummary summary, summary_from(progress.shown, id));
    summary.name = changed.name;
    summary.note = changed.note;
    summary.tags = changed.tags;
    show(summary, progress);
    tools_.loop.batch().progress.push_back(std::move(progress));
  }
  note_request(caller, "set", id, row.uid);
  tools_.loop.note(store::note_row(tools_.clock.wall().nanoseconds, id, 0,
                                   wire::EventKind::kRunChanged, wire::Severity::kInfo,
                                   caller.user + " set " + join(overrides, ", "),
                                   {{"by", caller.user}, {"overrides", overrides}}));
  tools_.loop.batch().runs.push_back(std::move(row));
  tools_.loop.flush();
  if (tools_.loop.ledger_full())
    return fail(ErrorCode::kExhausted, "the ledger cannot be written: the disk is full",
                "free disk space in " + options_.state_folder);
  return {};
}

} // namespace nsa::control
