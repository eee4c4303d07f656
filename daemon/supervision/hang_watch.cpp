#include "daemon/supervision/hang_watch.h"

#include "common/base/log.h"

namespace nsa::control {

HangWatch::HangWatch(ShimListener& listener, Reach reach, const ShimConnectionOptions& options)
    : listener_(listener), reach_(std::move(reach)), options_(options),
      detector_(options.hang, options.ranks, MonotonicTime::now(), options.first_step_done,
                options.learned),
      verdicts_(options.hangs_before) {}

std::optional<state::Verdict> HangWatch::observe(const std::vector<state::RankSample>& samples,
                                                 MonotonicTime now) {
  const state::Observation seen = detector_.observe(samples, now);
  for (const state::SlowStep& slow : seen.slow)
    emit(slow);
  if (seen.is_over) withdraw();
  if (seen.verdict) found_ = true;
  return seen.verdict;
}

void HangWatch::report(state::Verdict v, const std::string& debugger) {
  if (!found_) return;
  // The number counts on from an earlier nsad's evidence of this attempt, so that every id is used
  // once.
  if (v.kind != state::HangKind::kTraced) v.id = "hang-" + std::to_string(++verdicts_);
  verdict_ = v;
  if (v.kind == state::HangKind::kTraced)
    emit(state::DebuggerAttached{v.rank, v.tracer, debugger, v.phase, v.step, v.detect_seconds});
  else
    emit(state::HangFound{static_cast<const state::HangFinding&>(v)});
}

void HangWatch::withdraw() {
  found_ = false;
  if (!verdict_) return;
  if (verdict_->kind == state::HangKind::kTraced)
    emit(state::DebuggerGone{verdict_->rank});
  else
    emit(state::HangWithdrawn{"rank " + std::to_string(verdict_->rank) + " moved again"});
  verdict_.reset();
}

void HangWatch::give_to_debugger(int64_t tracer, const std::string& debugger) {
  emit(state::HangWithdrawn{"a debugger is attached to rank " + std::to_string(verdict_->rank)});
  detector_.note_debugger();
  verdict_->kind = state::HangKind::kTraced;
  verdict_->tracer = tracer;
  report(*verdict_, debugger);
}

void HangWatch::write_verdict(const state::Verdict& verdict, const state::EvidenceSaved& saved,
                              const std::vector<state::RankSample>& samples,
                              const nlohmann::json& nodes) const {
  if (saved.id != verdict.id) return;
  // The folder is computed here. The path that a shim reports is for people to read only; nsad
  // opens nothing by it.
  reach_.calls.run(
      {"uid " + std::to_string(options_.submitter), "the verdict of run " + options_.key.run},
      [host = reach_.host, as = options_.submitter,
       folder = options_.folder + "/evidence/" + verdict.id,
       file = verdict_file(verdict, saved, samples, listener_.gpus_of(options_.key), nodes)] {
        return host->write_files(as, folder, {file});
      },
      [run = options_.key.run](const Status& written) {
        if (!written)
          log::warning("control", "a verdict was not written",
                       {{"run", run}, {"why", written.error().what}});
      });
}

} // namespace nsa::control
