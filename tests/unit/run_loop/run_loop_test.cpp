// nsad dies after each durable action and around each command, and the next nsad continues from the
// ledger. Nothing is done twice, nothing is lost, and every run ends as it would have without the
// deaths.
#include "daemon/run_metrics/shown_run.h"
#include "tests/unit/run_loop/fake_nsad.h"

#include <array>
#include <gtest/gtest.h>
#include <optional>

namespace nsa::control::fake {
namespace {

using Courses = std::map<RunId, std::vector<Course>>;

// How a run has ended, as users see it.
struct End {
  std::string phase, reason;
  AttemptNumber attempts = 0;
  int restarts = 0, hangs = 0;
  uint64_t best_step = 0, counted_steps = 0;
  bool operator==(const End&) const = default;
};
using Ends = std::map<RunId, End>;

void PrintTo(const End& end, std::ostream* out) {
  *out << end.phase << " (" << end.reason << "), " << end.attempts << " attempts, " << end.restarts
       << " restarts, " << end.hangs << " hangs, step " << end.best_step << ", counted "
       << end.counted_steps;
}

// Asks runs to stop when their first checkpoint is known. A run's name says whether and how.
void make_requests(FakeNsad& nsad) {
  std::vector<state::Event> asked;
  for (const auto& [id, run] : nsad.loop.state().runs) {
    if (run.phase != state::RunState::kRunning || run.best_step == 0) continue;
    if (id.starts_with("stop")) asked.push_back({id, 0, 0, state::StopRequested{"ann", true}});
    if (id.starts_with("cancel")) asked.push_back({id, 0, 0, state::CancelRequested{"ann"}});
  }
  for (state::Event& event : asked)
    nsad.loop.submit(std::move(event));
}

bool all_over(const World& world) {
  if (world.ledger.runs.size() != world.courses.size()) return false;
  for (const auto& [id, run] : world.ledger.runs)
    if (run.closed == 0) return false;
  for (const auto& [key, shim] : world.shims)
    if (shim.alive()) return false;
  return true;
}

class Simulation {
public:
  Simulation(uint64_t seed, const Courses& courses) : world(seed, courses) {}

  // Continues until all runs have ended. nsad may die and start again many times.
  Ends run() {
    std::optional<FakeNsad> nsad;
    constexpr int kMostTurns = 4000;
    for (int turn = 0; !all_over(world) || (nsad && !nsad->idle()); ++turn) {
      if (turn == kMostTurns) {
        ADD_FAILURE() << "the runs do not end: " << what_is_wanted(nsad);
        return {};
      }
      try {
        if (!nsad) nsad.emplace(world);
        one_turn(*nsad);
      } catch (const Killed&) {
        nsad.reset();
        ++deaths;
      }
    }
    check_the_end();
    return ends();
  }

  World world;
  int deaths = 0;

private:
  static std::string what_is_wanted(const std::optional<FakeNsad>& nsad) {
    std::string text;
    if (nsad)
      for (const state::Command& c : state::pending_commands(nsad->loop.state()))
        text += state::to_text(c) + "; ";
    return text;
  }

  void one_turn(FakeNsad& nsad) {
    for (const auto& [id, course] : world.courses)
      if (world.ledger.runs.count(id) == 0 && nsad.loop.find(id) == nullptr) nsad.submit(id, 2);
    world.go_on();
    make_requests(nsad);
    nsad.turn();
    if (nsad.idle() && ++turns_ % 4 == 0) nsad.check_that_the_ledger_gives_the_state();
  }

  void check_the_end() const {
    EXPECT_TRUE(world.ledger.leases.empty()) << "a slot is still leased";
    for (const auto& [id, run] : world.ledger.runs) {
      EXPECT_EQ(run.closed, 1) << id;
      EXPECT_FALSE(run.progress.open) << id;
      EXPECT_GE(run.summaries, 1) << id;
    }
    for (const auto& [key, shim] : world.shims) {
      EXPECT_TRUE(shim.running.empty()) << "ranks of run " << key.run << " are left";
      check_messages(key, shim);
    }
  }

  // Each event that a shim sent is in the ledger once and in order.
  void check_messages(const AttemptKey& key, const Shim& shim) const {
    if (shim.lost) return; // messages that it had not sent are lost with it
    std::vector<uint64_t> recorded, told;
    for (const store::EventRow& row : world.ledger.runs.at(key.run).events)
      if (row.attempt == key.attempt && row.shim_sequence != 0)
        recorded.push_back(row.shim_sequence);
    for (size_t i = 0; i < shim.said.size(); ++i)
      if (std::holds_alternative<state::EventBody>(shim.said[i])) told.push_back(i + 1);
    EXPECT_EQ(recorded, told) << "attempt " << key.attempt << " of run " << key.run;
  }

  Ends ends() const {
    Ends ends;
    for (const auto& [id, run] : world.ledger.runs) {
      const wire::RunSummary s = summary_from(run.progress.shown, id).value();
      End& end = ends[id];
      end.phase = s.state.text();
      end.reason = s.reason;
      end.attempts = s.attempt;
      end.restarts = s.restarts;
      end.hangs = s.hangs;
      end.best_step = s.step;
      end.counted_steps = run.progress.memory.value("steps", uint64_t{0});
    }
    return ends;
  }

  int turns_ = 0;
};

// These cover every course and every command. Three runs of two ranks wait for each other, since
// there are two slots.
const std::array<Courses, 4> kCourses = {
    Courses{{"a", {Course::kCrashes, Course::kCompletes}},
            {"b", {Course::kHangs, Course::kCompletes}},
            {"stop", {Course::kGoesOn}}},
    Courses{{"a", {Course::kCrashes}}, // until its restart budget is spent
            {"cancel", {Course::kGoesOn}},
            {"c", {Course::kLosesItsShim, Course::kCompletes}}},
    Courses{{"a", {Course::kHangs, Course::kCrashes, Course::kCompletes}},
            {"b", {Course::kCompletes}},
            {"stop", {Course::kGoesOn}}},
    Courses{{"a", {Course::kLosesItsShim, Course::kHangs, Course::kCompletes}}},
};

TEST(RunLoop, RunsEndAsTheirRanksDo) {
  const Ends ends = Simulation(1, kCourses[0]).run();
  EXPECT_EQ(ends.at("a").phase, "completed");
  EXPECT_EQ(ends.at("a").attempts, 2);
  EXPECT_EQ(ends.at("b").phase, "completed");
  EXPECT_EQ(ends.at("b").hangs, 1);
  EXPECT_EQ(ends.at("stop").phase, "stopped");
  EXPECT_EQ(ends.at("stop").attempts, 1);
}

TEST(RunLoop, ADeathAtEveryPlaceChangesNoEnd) {
  std::set<std::string> killed_at;
  for (const Courses& courses : kCourses) {
    Simulation reference(1, courses);
    const Ends expected = reference.run();
    const int places = reference.world.kill.count();
    ASSERT_GT(places, 50);
    for (int place = 1; place <= places && !testing::Test::HasFailure(); ++place) {
      Simulation simulation(1, courses);
      simulation.world.kill.arm(place);
      EXPECT_EQ(simulation.run(), expected) << "dead at place " << place;
      EXPECT_EQ(simulation.deaths, 1);
      killed_at.merge(std::set<std::string>(simulation.world.kill.killed_at()));
    }
  }
  for (const char* command :
       {"acquire_slots", "choose_checkpoint", "start_attempt", "supervise", "take_evidence",
        "stop_ranks", "kill_ranks", "release_shim", "arm_timer", "cancel_timer", "close_run"}) {
    EXPECT_EQ(killed_at.count(std::string("before ") + command), 1u) << command;
    EXPECT_EQ(killed_at.count(std::string("after ") + command), 1u) << command;
  }
}

TEST(RunLoop, DeathsInARowChangeNoEnd) {
  constexpr uint64_t kSeeds = 150;
  int deaths = 0;
  for (uint64_t seed = 2; seed < 2 + kSeeds && !testing::Test::HasFailure(); ++seed) {
    const Courses& courses = kCourses[seed % kCourses.size()];
    const Ends expected = Simulation(seed, courses).run();
    Simulation simulation(seed + 1'000'000, courses); // the same courses in another order
    simulation.world.kill.arm_at_random(seed, static_cast<unsigned>(4 + seed % 40));
    EXPECT_EQ(simulation.run(), expected) << "seed " << seed;
    deaths += simulation.deaths;
  }
  EXPECT_GT(deaths, 500);
}

// Records the commands, and does nothing.
struct NotingDispatch final : Dispatch {
  void carry_out(const state::Command&) override { ++commands; }
  void acknowledge(const AttemptKey& key, uint64_t sequence) override {
    acknowledged[key] = sequence;
  }
  int commands = 0;
  std::map<AttemptKey, uint64_t> acknowledged;
};

TEST(RunLoop, NothingIsCarriedOutThatIsNotOnDisk) {
  World world(1, {{"run", {Course::kCompletes}}});
  FakeNsad nsad(world);
  NotingDispatch dispatch;
  nsad.loop.attach(dispatch);
  world.ledger.refuse_next = 1;
  nsad.submit("run", 1);
  EXPECT_EQ(dispatch.commands, 0);
  EXPECT_TRUE(nsad.loop.ledger_full());
  nsad.loop.flush(); // the disk has room again
  EXPECT_GT(dispatch.commands, 0);
  EXPECT_FALSE(nsad.loop.ledger_full());
}

TEST(RunLoop, AShimKeepsWhatHasNoRowYet) {
  World world(1, {{"quiet", {Course::kCompletes}}, {"other", {Course::kCompletes}}});
  FakeNsad nsad(world);
  NotingDispatch dispatch;
  nsad.loop.attach(dispatch);
  nsad.submit("quiet", 1);
  const AttemptKey key{"quiet", 1};
  nsad.loop.acknowledge_later(key, 7); // only a step: no event and no commit
  nsad.submit("other", 1);             // this commit has no row of the first run
  EXPECT_EQ(dispatch.acknowledged.count(key), 0u);
  nsad.loop.touch_unacknowledged();
  nsad.loop.flush();
  EXPECT_EQ(dispatch.acknowledged[key], 7u);
  EXPECT_EQ(world.ledger.shim_sequences[key], 7u);
}

TEST(RunLoop, TheFiguresOfHundredsOfRanksAreNotWrittenEverySecond) {
  World world(1, {{"wide", {Course::kCompletes}}});
  FakeNsad nsad(world);
  NotingDispatch dispatch;
  nsad.loop.attach(dispatch);
  nsad.submit("wide", 1);
  state::Run run = *nsad.loop.find("wide");
  run.attempt.ranks.resize(512);
  nsad.loop.load(run, nsad.loop.state().next_order);
  const AttemptKey key{"wide", 1};
  const auto second_passes = [&](uint64_t heard) {
    world.now += 1'000'000'000;
    nsad.loop.acknowledge_later(key, heard);
    nsad.loop.touch_unacknowledged();
    nsad.loop.flush();
    return dispatch.acknowledged[key];
  };
  nsad.loop.touch("wide");
  nsad.loop.flush();
  for (uint64_t heard = 8; heard < 64; heard += 8)
    EXPECT_EQ(second_passes(heard), 0u);
  EXPECT_EQ(second_passes(64), 64u) << "after eight seconds";
  EXPECT_EQ(second_passes(72), 64u);
  EXPECT_EQ(second_passes(136), 136u) << "its shim has said much";
}

TEST(RunLoop, AFullDiskDelaysAndLosesNothing) {
  for (uint64_t seed = 1; seed < 40 && !testing::Test::HasFailure(); ++seed) {
    const Courses& courses = kCourses[seed % kCourses.size()];
    const Ends expected = Simulation(seed, courses).run();
    Simulation simulation(seed, courses);
    simulation.world.ledger.refuse_one_in = 3;
    EXPECT_EQ(simulation.run(), expected) << "seed " << seed;
  }
}

} // namespace
} // namespace nsa::control::fake
