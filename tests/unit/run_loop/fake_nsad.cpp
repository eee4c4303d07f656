#include "tests/unit/run_loop/fake_nsad.h"

#include "daemon/run_loop/replay.h"

#include <algorithm>
#include <gtest/gtest.h>

namespace nsa::control::fake {

// ---- clock --------------------------------------------------------------------------------------

struct FakeClock::Entry {
  int64_t due = 0;
  std::function<void()> callback;
};

net::Timer FakeClock::after(Duration delay, std::function<void()> callback) {
  struct Handle final : net::Handle {
    std::shared_ptr<Entry> entry;
  };
  auto handle = std::make_unique<Handle>();
  handle->entry = std::make_shared<Entry>(Entry{world_.now + delay.count(), std::move(callback)});
  timers_.push_back(handle->entry);
  return handle;
}

void FakeClock::turn() {
  for (std::deque<std::function<void()>> now = std::exchange(posted_, {}); !now.empty();
       now.pop_front())
    now.front()();
  const auto all = timers_; // a callback may arm another
  for (const auto& weak : all)
    if (const auto entry = weak.lock(); entry && entry->due <= world_.now && entry->callback)
      std::exchange(entry->callback, nullptr)();
  std::erase_if(timers_, [](const auto& weak) {
    const auto entry = weak.lock();
    return !entry || !entry->callback;
  });
}

// ---- launcher -----------------------------------------------------------------------------------

void FakeLauncher::turn() {
  while (!jobs_.empty() && !world_.chance(3)) {
    const size_t which = world_.random() % jobs_.size();
    const std::function<void()> job = std::move(jobs_[which]);
    jobs_.erase(jobs_.begin() + static_cast<ptrdiff_t>(which));
    job();
  }
}

void FakeLauncher::list_gpus(Done<gpu::Gpus> done) {
  clock_.post([done] { done(gpu::Gpus{}); });
}

void FakeLauncher::choose_checkpoint(const RunRecord& record, std::vector<manifest::Distrust>,
                                     Done<manifest::Choice> done) {
  jobs_.emplace_back([this, run = record.row.id, done] {
    manifest::Choice choice;
    if (const uint64_t step = world_.checkpoints[run]; step > 0)
      choice.chosen = manifest::Found{"step-" + std::to_string(step), step, {}, 0, ""};
    done(choice);
  });
}

Result<privilege::AttemptStart> FakeLauncher::prepare(const state::Run& run, const RunRecord&) {
  privilege::AttemptStart start;
  start.plan.run_id = run.id;
  start.plan.attempt = run.attempt.number;
  start.plan.token =
      run.attempt.token.empty() ? "token-" + std::to_string(world_.random()) : run.attempt.token;
  start.plan.ranks.resize(static_cast<size_t>(run.ranks));
  return start;
}

void FakeLauncher::start(const RunRecord&, privilege::AttemptStart start,
                         Done<shim::StartedShim> done) {
  jobs_.emplace_back([this, plan = start.plan, done] {
    const AttemptKey key{plan.run_id, plan.attempt};
    EXPECT_EQ(world_.ledger.tokens[key], plan.token) << "nothing runs before its intent is on disk";
    world_.kill.pass("before a shim starts");
    const Shim& shim = world_.start(key, static_cast<int>(plan.ranks.size()), plan.token);
    world_.kill.pass("after a shim has started");
    shim::StartedShim started;
    started.identity = {"boot", static_cast<pid_t>(shim.pid), 1};
    done(std::move(started));
  });
}

void FakeLauncher::read_started(const RunRecord& record, AttemptNumber attempt,
                                Done<shim::StartedAttempt> done) {
  jobs_.emplace_back([this, key = AttemptKey{record.row.id, attempt}, done] {
    const Shim& shim = world_.shims.at(key);
    shim::StartedAttempt started;
    started.shim_pid = shim.pid;
    started.ranks.resize(static_cast<size_t>(shim.ranks));
    done(started);
  });
}

void FakeLauncher::write_summary(const store::RunRow& row, const nlohmann::json&,
                                 std::function<void(const Status&)> done) {
  jobs_.emplace_back([this, run = row.id, done] {
    ++world_.ledger.runs.at(run).summaries;
    done({});
  });
}

// ---- a shim's connection ------------------------------------------------------------------------

FakeConnection::FakeConnection(World& world, ShimListener& listener, ShimConnectionOptions options)
    : world_(world), listener_(listener), options_(std::move(options)),
      samples_(static_cast<size_t>(options_.ranks)) {
  EXPECT_EQ(options_.token, shim()->token);
}

Shim* FakeConnection::shim() const {
  const auto found = world_.shims.find(options_.key);
  return found == world_.shims.end() ? nullptr : &found->second;
}

void FakeConnection::observe(MonotonicTime) {
  if (!started_ || ended_) return;
  if (!shim()->alive()) return on_shim_gone();
  if (!connected_) {
    if (world_.chance(3)) return; // connecting takes some turns
    connected_ = true;
    // nsad's hello says what it has.
    shim()->forgotten = std::max(shim()->forgotten, options_.acknowledged);
    if (std::exchange(options_.adopted, false))
      listener_.on_event(options_.key, state::ShimAdopted{}, 0);
    return listener_.on_connected(options_.key);
  }
  hear();
}

void FakeConnection::hear() {
  Shim& s = *shim();
  EXPECT_LE(s.forgotten, options_.acknowledged) << "the shim has forgotten what nobody has";
  const uint64_t before = options_.acknowledged;
  while (options_.acknowledged < s.said.size() && !world_.chance(4)) {
    ++options_.acknowledged;
    const Said& said = s.said[options_.acknowledged - 1];
    if (const auto* step = std::get_if<wire::RankStep>(&said))
      listener_.on_step(options_.key, *step);
    else
      listener_.on_event(options_.key, std::get<state::EventBody>(said), options_.acknowledged);
  }
  if (options_.acknowledged > before) listener_.on_dealt_with(options_.key, options_.acknowledged);
  if (s.course == Course::kHangs && s.stage > 3 && options_.acknowledged == s.said.size() &&
      !s.asked_to_kill && !released_ && !std::exchange(hang_told_, true))
    listener_.on_event(options_.key,
                       state::HangFound{"hang-" + std::to_string(options_.hangs_before + 1),
                                        1,
                                        state::HangKind::kDeadlocked,
                                        progress::Phase::kForward,
                                        3,
                                        1.0,
                                        {"still"}},
                       0);
  if (s.evidence.empty()) return;
  state::EvidenceSaved saved;
  saved.id = std::exchange(s.evidence, "");
  listener_.on_event(options_.key, saved, 0);
}

void FakeConnection::on_shim_gone() {
  ended_ = true;
  if (released_) return listener_.on_shim_ended(options_.key);
  listener_.on_event(options_.key, state::ShimLost{"killed"}, 0);
}

void FakeConnection::take_evidence(const std::string& id, double) {
  if (!connected()) return;
  world_.kill.pass("before evidence is asked for");
  shim()->evidence = id;
  world_.kill.pass("after evidence is asked for");
}

void FakeConnection::stop_ranks(bool) {
  if (!connected()) return;
  shim()->asked_to_stop = true;
  world_.kill.pass("after ranks are asked to stop");
}

void FakeConnection::kill_ranks(const std::string&) {
  if (!connected()) return;
  shim()->asked_to_kill = true;
  world_.kill.pass("after ranks are killed");
}

void FakeConnection::acknowledge(uint64_t sequence) {
  if (!connected()) return;
  EXPECT_GE(world_.ledger.shim_sequences[options_.key], sequence)
      << "acknowledged, and not on disk";
  shim()->forgotten = std::max(shim()->forgotten, sequence);
}

void FakeConnection::release() {
  released_ = true;
  EXPECT_TRUE(shim()->running.empty()) << "a shim is let go that has ranks";
  if (ended_) return listener_.on_shim_ended(options_.key);
  shim()->released = true;
  world_.kill.pass("after a shim is let go");
}

// ---- nsad ---------------------------------------------------------------------------------------

FakeNsad::FakeNsad(World& w)
    : world(w), clock(w), launcher(w, clock), slots(World::kSlots), loop(clock, w.ledger),
      metrics(clock, loop, connections, provenance, nullptr),
      commands({clock, loop, metrics, w.ledger, slots, launcher, connections,
                [this](ShimListener& listener, ShimConnectionOptions options) {
                  return std::make_unique<FakeConnection>(world, listener, std::move(options));
                }},
               {"/state",
                {},
                {},
                [](const RunId&, const wire::RankStep&) {},
                [](const wire::RunSummary&) {},
                [](const state::Run&) { return std::vector<RankGpu>{}; }}),
      dispatch(*this) {
  loop.attach(static_cast<Dispatch&>(dispatch));
  loop.set_watcher([](const Committed&) {});
  take_up();
  commands.carry_out_pending();
}

void FakeNsad::take_up() {
  for (const auto& [id, stored] : world.ledger.runs) {
    if (stored.closed > 0) {
      EXPECT_FALSE(stored.progress.open) << "a closed run is listed as open";
      continue;
    }
    auto replayed = replay(id, stored.events, loop.state().next_order);
    ASSERT_TRUE(replayed) << replayed.error().what;
    RunRecord record;
    record.row = stored.row;
    record.spec.parallel.ranks = replayed->run.ranks;
    recall(record, stored.progress.memory);
    ASSERT_TRUE(slots.take_back(id, replayed->run.device, replayed->run.slots));
    loop.load(std::move(replayed->run), replayed->next_order);
    metrics.add(std::move(record));
  }
}

void FakeNsad::KillingDispatch::carry_out(const state::Command& command) {
  const std::string name(state::command_name(command.kind));
  nsad.world.kill.pass("before " + name);
  nsad.commands.carry_out(command);
  nsad.world.kill.pass("after " + name);
}

void FakeNsad::KillingDispatch::acknowledge(const AttemptKey& key, uint64_t sequence) {
  nsad.commands.acknowledge(key, sequence);
}

void FakeNsad::submit(const RunId& run, int ranks) {
  RunRecord record;
  record.row.id = run;
  record.row.name = run;
  record.spec.parallel.ranks = ranks;
  loop.batch().runs.push_back(record.row);
  metrics.add(std::move(record));
  state::Submitted submitted{ranks, spec::Device::kCpu, "ann", run, {}};
  submitted.policy.delay_seconds = 0.2;
  submitted.policy.max_restarts = 2;
  loop.submit({run, 0, 0, submitted});
}

void FakeNsad::turn() {
  clock.turn();
  launcher.turn();
  connections.for_each([this](ShimConnection& shim) { shim.observe(clock.monotonic()); });
  if (world.chance(10)) loop.touch_unacknowledged();
  loop.flush();
  if (world.chance(10)) commands.look_for_slots();
}

void FakeNsad::check_that_the_ledger_gives_the_state() {
  for (const auto& [id, run] : loop.state().runs) {
    auto replayed = replay(id, world.ledger.runs.at(id).events, run.order);
    ASSERT_TRUE(replayed) << replayed.error().what;
    EXPECT_TRUE(replayed->run == run) << "run " << id << " is not what its events give";
  }
}

} // namespace nsa::control::fake
