// One life of nsad in a fake world. Run loop, metrics and command runner are the real ones; fakes
// implement their interfaces. Its destructor leaves the world unchanged.
#pragma once

#include "daemon/commands/command_runner.h"
#include "tests/unit/run_loop/fake_world.h"

#include <deque>
#include <functional>
#include <memory>
#include <string>

namespace nsa::control::fake {

class FakeClock final : public Clock {
public:
  explicit FakeClock(World& world) : world_(world) {}
  WallTime wall() const override { return {world_.now}; }
  MonotonicTime monotonic() const override { return {world_.now}; }
  net::Timer after(Duration delay, std::function<void()> callback) override;
  void post(std::function<void()> callback) override { posted_.push_back(std::move(callback)); }
  bool idle() const { return posted_.empty(); }
  void turn(); // runs what was posted and the timers that are due

private:
  struct Entry;
  World& world_;
  std::deque<std::function<void()>> posted_;
  std::vector<std::weak_ptr<Entry>> timers_;
};

class FakeLauncher final : public Launcher {
public:
  FakeLauncher(World& world, FakeClock& clock) : world_(world), clock_(clock) {}
  void list_gpus(Done<gpu::Gpus> done) override;
  void choose_checkpoint(const RunRecord& record, std::vector<manifest::Distrust> distrusted,
                         Done<manifest::Choice> done) override;
  Result<privilege::AttemptStart> prepare(const state::Run& run, const RunRecord& record) override;
  void start(const RunRecord& record, privilege::AttemptStart start,
             Done<shim::StartedShim> done) override;
  void read_started(const RunRecord& record, AttemptNumber attempt,
                    Done<shim::StartedAttempt> done) override;
  void write_summary(const store::RunRow& row, const nlohmann::json& summary,
                     std::function<void(const Status&)> done) override;
  void turn(); // finishes jobs, in any order

private:
  World& world_;
  FakeClock& clock_;
  std::vector<std::function<void()>> jobs_;
};

class FakeConnection final : public ShimConnection {
public:
  FakeConnection(World& world, ShimListener& listener, ShimConnectionOptions options);
  const std::vector<state::RankSample>& samples() const override { return samples_; }
  bool caught_up() const override { return true; }
  state::Learned learned() const override { return {}; }
  void start() override { started_ = true; }
  void observe(MonotonicTime now) override; // receives what the shim sends
  void take_evidence(const std::string& id, double limit_seconds) override;
  void stop_ranks(bool checkpoint) override;
  void kill_ranks(const std::string& reason) override;
  void checkpoint_ranks() override {}
  void acknowledge(uint64_t sequence) override;
  void release() override;
  void say_goodbye() override {}

private:
  bool connected() const { return connected_ && shim() != nullptr && shim()->alive(); }
  Shim* shim() const;
  void hear();
  void on_shim_gone();

  World& world_;
  ShimListener& listener_;
  ShimConnectionOptions options_;
  std::vector<state::RankSample> samples_;
  bool started_ = false, connected_ = false, released_ = false, ended_ = false;
  bool hang_told_ = false;
};

class FakeNsad {
public:
  explicit FakeNsad(World& world); // continues from the ledger
  // A user's request. If nsad dies before it is stored, the user repeats it.
  void submit(const RunId& run, int ranks);
  void turn();
  // Whether everything that was applied is on disk, and no callback is pending.
  bool idle() { return loop.batch().empty() && clock.idle(); }
  void check_that_the_ledger_gives_the_state();

  World& world;
  FakeClock clock;
  FakeLauncher launcher;
  ShimConnections connections;
  SlotPool slots;
  RunLoop loop;
  struct NoProvenance final : ProvenanceSource {
    nlohmann::json begin(const RunRecord&) override { return nlohmann::json::object(); }
    void read_data(const RunRecord&, std::function<void(const nlohmann::json&)>) override {}
  } provenance;
  RunMetrics metrics;
  CommandRunner commands;
  // Stands between the loop and its commands, and kills nsad there.
  struct KillingDispatch final : Dispatch {
    explicit KillingDispatch(FakeNsad& owner) : nsad(owner) {}
    void carry_out(const state::Command& command) override;
    void acknowledge(const AttemptKey& key, uint64_t sequence) override;
    FakeNsad& nsad;
  } dispatch;

private:
  void take_up(); // reads the ledger's open runs
};

} // namespace nsa::control::fake
