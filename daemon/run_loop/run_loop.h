// The event loop of nsad's runs: event, append, apply, dispatch. It owns the state of all open runs
// and the batch of rows that the next commit writes. No other object changes them.
//
//   event ──▶ handle(): state::apply ──▶ new state, rows of the batch, commands that wait
//   flush():  commit the batch ──▶ acknowledge shim messages ──▶ tell watchers ──▶ dispatch,
//             again, until commands cause no more events
//
// A command is carried out only after the event that caused it is on disk. If the ledger cannot be
// written, everything waits in the batch and the next flush() tries again. After a crash
// state::pending_commands() of the replayed state gives the commands that were lost.
//
// All calls are on the loop's thread. Only the commit blocks. To stop it, destroy it.
#pragma once

#include "daemon/run_loop/clock.h"
#include "daemon/run_loop/live_attempt.h"
#include "daemon/state/apply.h"
#include "daemon/store/run_ledger.h"

#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace nsa::control {

// Writes additional rows for events, from which queries are answered.
class Projection {
public:
  virtual ~Projection() = default;
  virtual void project(const state::State& state, const state::Event& event, WallTime now,
                       store::Batch& batch) = 0;
  virtual void project(const state::Note& note) = 0;
  // Rows of the runs in `changed`, made again before each commit. It may touch() more runs.
  virtual void add_rows(const state::State& state, const std::set<RunId>& changed,
                        store::Batch& batch) = 0;
};

// Carries out commands once their events are on disk.
class Dispatch {
public:
  virtual ~Dispatch() = default;
  virtual void carry_out(const state::Command& command) = 0;
  // Tells the shim that it may forget its messages up to `sequence`.
  virtual void acknowledge(const AttemptKey& key, uint64_t sequence) = 0;
};

struct Committed {
  const store::Batch& batch;
  const std::set<RunId>& changed;
  Duration took{};
};

class RunLoop {
public:
  RunLoop(Clock& clock, store::RunLedger& ledger) : clock_(clock), ledger_(ledger) {}
  // Call these before the first event.
  void attach(Projection& projection) { projections_.push_back(&projection); }
  void attach(Dispatch& dispatch) { dispatch_ = &dispatch; }
  void set_watcher(std::function<void(const Committed&)> committed) {
    committed_ = std::move(committed);
  }

  const state::State& state() const { return state_; }
  const state::Run* find(const RunId& run) const;
  // load() adds a run that replay() has rebuilt; forget() removes a run.
  void load(state::Run run, int64_t next_order);
  void forget(const RunId& run) {
    state_.runs.erase(run);
    written_at_.erase(run);
  }

  void handle(const state::Event& event); // applies and queues; flush() makes it durable
  void flush();                           // writes, then carries out commands
  void submit(const state::Event& event) {
    handle(event);
    flush();
  }
  // Rows that go with the next commit, and runs whose rows must be made again.
  store::Batch& batch() { return batch_; }
  void note(store::EventRow row) { batch_.events.push_back(std::move(row)); }
  void touch(const RunId& run) { changed_.insert(run); }
  void untouch(const RunId& run) { changed_.erase(run); }
  // The messages of an attempt's shim up to `sequence` have become events, or needed none.
  void acknowledge_later(const AttemptKey& key, uint64_t sequence);
  // Also acknowledges messages that became no events, so that the shim may forget them.
  void touch_unacknowledged();

  bool ledger_full() const { return full_; }

private:
  bool commit(); // returns false if the ledger cannot be written now

  Clock& clock_;
  store::RunLedger& ledger_;
  std::vector<Projection*> projections_;
  Dispatch* dispatch_ = nullptr;
  std::function<void(const Committed&)> committed_;

  state::State state_;
  store::Batch batch_;      // rows that are applied and not yet on disk
  std::set<RunId> changed_; // runs changed since the last commit
  std::vector<state::Command> commands_;
  // Handled messages that are not yet on disk, by attempt and part.
  struct Heard { // sequence numbers of the first and last of them
    uint64_t first = 0, last = 0;
  };
  std::map<std::pair<AttemptKey, size_t>, Heard> unacknowledged_;
  std::map<RunId, MonotonicTime> written_at_; // when the rows of each open run were last written
  bool flushing_ = false, full_ = false;
};

} // namespace nsa::control
