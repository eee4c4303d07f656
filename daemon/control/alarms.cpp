// What a person has to look at, though the run goes on or has ended well.
#include "daemon/control/controller.h"

#include <utility>

namespace nsa::control {

std::vector<std::string> alarms_of(const state::Run& run, const RunRecord& record) {
  std::vector<std::string> alarms;
  if (const state::FailedCheckpoints& failed = run.failed_checkpoints; failed.count > 0) {
    const std::string since =
        run.best_step == 0 ? "the start" : "step " + std::to_string(run.best_step);
    const std::string which = failed.count == 1
                                  ? "that of step "
                                  : std::to_string(failed.count) + " failed, the last at step ";
    alarms.push_back("no checkpoint since " + since + ": " + which +
                     std::to_string(failed.last_step) + (failed.count == 1 ? " failed: " : ": ") +
                     failed.why);
  }
  if (record.loss.diverged(has_ended(run.phase))) alarms.push_back(record.loss.text());
  return alarms;
}

// Once an attempt, and again when the loss has come back in between.
void Controller::tell_divergence(const state::Run& run, RunRecord& record) {
  const bool diverged = record.loss.diverged(has_ended(run.phase));
  if (!diverged || std::exchange(record.divergence_told, diverged)) {
    record.divergence_told = diverged;
    return;
  }
  store::EventRow row;
  row.view = {0,
              WallTime::now().nanoseconds,
              run.id,
              run.attempt.number,
              -1,
              "loss_diverged",
              "warning",
              record.loss.text() + " at step " + std::to_string(record.last.step),
              {{"step", record.last.step}, {"loss", record.last.loss}}};
  batch_.events.push_back(std::move(row));
  touch(run.id);
}

} // namespace nsa::control
