#include "daemon/run_loop/replay.h"

#include "daemon/state/apply.h"

namespace nsa::control {

Result<Replayed> replay(const RunId& id, const std::vector<store::EventRow>& events,
                        int64_t next_order) {
  state::State state;
  state.next_order = next_order; // queue positions are assigned in the order of loading
  for (const store::EventRow& row : events) {
    auto body = state::body_from_json(row.kind.view(), row.detail);
    if (!body)
      return fail(ErrorCode::kCorrupt,
                  "ledger.db, event " + std::to_string(row.sequence) + ": " + body.error().what);
    // Applying RunClosed would remove the run from the state, but a resume needs the run as it was.
    if (std::holds_alternative<state::RunClosed>(*body)) continue;
    state::Applied applied = state::apply(
        std::move(state), {id, row.attempt, row.shim_sequence, std::move(*body)}, WallTime{row.at});
    state = std::move(applied.state);
  }
  const auto run = state.runs.find(id);
  if (run == state.runs.end())
    return fail(ErrorCode::kCorrupt, "the events of run " + id + " do not give its state");
  return Replayed{std::move(run->second), state.next_order};
}

} // namespace nsa::control
