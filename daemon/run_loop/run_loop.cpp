#include "daemon/run_loop/run_loop.h"

#include "common/base/log.h"
#include "common/wire/part_sequence.h"

#include <algorithm>
#include <utility>

namespace nsa::control {

namespace {

store::EventRow row_of(const state::Event& event, WallTime now) {
  state::Description description = state::describe(event);
  store::EventRow row;
  row.at = now.nanoseconds;
  row.run = event.run;
  row.attempt = event.attempt;
  row.rank = state::event_rank(event.body);
  row.kind = ChoiceOrText<wire::EventKind>(state::event_kind(event.body));
  row.severity = description.severity;
  row.text = std::move(description.text);
  row.detail = state::body_to_json(event.body);
  row.replay = true;
  row.shim_sequence = event.shim_sequence;
  return row;
}

store::EventRow row_of(const state::Note& note, WallTime now) {
  store::EventRow row;
  row = {0,         now.nanoseconds, note.run,  note.attempt, note.rank,
         note.kind, note.severity,   note.text, note.detail};
  return row;
}

} // namespace

const state::Run* RunLoop::find(const RunId& run) const {
  const auto found = state_.runs.find(run);
  return found == state_.runs.end() ? nullptr : &found->second;
}

void RunLoop::load(state::Run run, int64_t next_order) {
  state_.next_order = next_order;
  const RunId id = run.id;
  state_.runs[id] = std::move(run);
}

void RunLoop::handle(const state::Event& event) {
  const WallTime now = clock_.wall();
  state::Applied applied = state::apply(std::move(state_), event, now);
  state_ = std::move(applied.state);
  if (applied.ignored) return;
  batch_.events.push_back(row_of(event, now));
  for (Projection* projection : projections_)
    projection->project(state_, event, now, batch_);
  for (const state::Note& note : applied.notes) {
    for (Projection* projection : projections_)
      projection->project(note);
    batch_.events.push_back(row_of(note, now));
  }
  touch(event.run);
  commands_.insert(commands_.end(), applied.commands.begin(), applied.commands.end());
}

void RunLoop::acknowledge_later(const AttemptKey& key, uint64_t sequence) {
  unacknowledged_.try_emplace({key, wire::part_of_sequence(sequence)}, Heard{sequence, sequence})
      .first->second.last = sequence;
  // Step metrics alone need no commit. touch_unacknowledged() writes their sequence numbers later.
  if (!batch_.events.empty() || !commands_.empty()) flush();
}

void RunLoop::touch_unacknowledged() {
  // A commit of a run also writes the figures of each rank, so runs with hundreds of ranks are
  // written less often than every second. A shim with many unacknowledged messages is written at
  // once.
  constexpr size_t kRanksASecond = 64;
  constexpr size_t kLongest = 8;
  constexpr uint64_t kMuch = 64;
  const MonotonicTime now = clock_.monotonic();
  for (const auto& [shim, heard] : unacknowledged_) {
    const RunId& id = shim.first.run;
    const state::Run* run = find(id);
    const size_t ranks = run == nullptr ? 0 : run->attempt.ranks.size();
    const std::chrono::seconds pause(std::min(ranks / kRanksASecond, kLongest));
    const auto written = written_at_.find(id);
    // The caller comes about every second, with jitter.
    constexpr Duration kSlack = std::chrono::milliseconds(500);
    if (heard.last - heard.first >= kMuch || written == written_at_.end() ||
        now - written->second >= pause - kSlack)
      touch(id);
  }
}

// No command is carried out before its event is on disk. If the commit fails, ranks train on, and
// the caller tries again every second.
bool RunLoop::commit() {
  const size_t progress = batch_.progress.size(), attempts = batch_.attempts.size();
  const size_t ranks = batch_.ranks.size();
  for (Projection* projection : projections_)
    projection->add_rows(state_, changed_, batch_);
  // The figures that a message has changed go into the same commit as its sequence number. If the
  // shim repeats the message after a crash, it is counted only once.
  std::map<std::pair<AttemptKey, size_t>, uint64_t> written;
  for (const auto& [shim, heard] : unacknowledged_)
    if (const AttemptKey& key = shim.first; changed_.count(key.run) != 0) {
      written[shim] = heard.last;
      batch_.shim_sequences.emplace_back(key.run, key.attempt, heard.last);
    }
  const MonotonicTime began = clock_.monotonic();
  if (auto committed = ledger_.commit(batch_); !committed) {
    batch_.progress.resize(progress); // the next commit makes the other rows again from `changed_`
    batch_.attempts.resize(attempts);
    batch_.ranks.resize(ranks);
    batch_.shim_sequences.clear();
    if (!full_)
      log::error("control", "the ledger cannot be written; waiting",
                 {{"why", committed.error().what}});
    full_ = true;
    return false;
  }
  if (full_) log::info("control", "the ledger is written again");
  full_ = false;
  const store::Batch done = std::exchange(batch_, {});
  const std::set<RunId> changed = std::exchange(changed_, {});
  for (const RunId& run : changed)
    if (find(run) != nullptr) written_at_[run] = began;
  for (const auto& [shim, sequence] : written) {
    unacknowledged_.erase(shim);
    dispatch_->acknowledge(shim.first, sequence);
  }
  committed_({done, changed, clock_.monotonic() - began});
  return true;
}

void RunLoop::flush() {
  if (flushing_) return; // the loop below handles what commands cause
  flushing_ = true;
  while (!batch_.empty() || !commands_.empty() || !changed_.empty()) {
    if (!commit()) break;
    for (const state::Command& command : std::exchange(commands_, {}))
      dispatch_->carry_out(command);
  }
  flushing_ = false;
}

} // namespace nsa::control
