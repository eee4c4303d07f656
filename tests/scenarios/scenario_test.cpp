// Runs every *.scenario file beside this one through the state machine (README.md).
#include "common/base/file.h"
#include "common/base/text.h"
#include "daemon/state/apply.h"
#include "tests/scenarios/script.h"
#include "tests/support/test_paths.h"

#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>

namespace nsa::state {

namespace {

class Scenario : public testing::TestWithParam<std::string> {
protected:
  struct Recorded {
    RunId run;
    AttemptNumber attempt;
    uint64_t sequence;
    std::string kind, body;
    WallTime at;
  };

  Applied feed(const Event& event) {
    ledger_.push_back({event.run, event.attempt, event.shim_sequence,
                       std::string(event_kind(event.body)), body_to_json(event.body).dump(), now_});
    Applied applied = apply(state_, event, now_);
    state_ = applied.state;
    check_replay();
    check_commands(applied);
    return applied;
  }

  // What nsad does when it starts: the same events in their stored form give the same state.
  void check_replay() {
    State replayed;
    for (const Recorded& r : ledger_) {
      const auto body = body_from_json(r.kind, nlohmann::json::parse(r.body));
      ASSERT_TRUE(body) << body.error().what;
      replayed = apply(std::move(replayed), {r.run, r.attempt, r.sequence, *body}, r.at).state;
    }
    EXPECT_TRUE(replayed == state_) << "replaying the events gives another state";
  }

  // Commands given out so far, less those withdrawn, are the pending ones: a crash loses none.
  void check_commands(const Applied& applied) {
    for (const Command& c : applied.commands)
      if (c.kind != CommandKind::kCancelTimer) given_.push_back(c);
    for (const Command& c : pending_commands(state_))
      EXPECT_NE(std::find(given_.begin(), given_.end(), c), given_.end())
          << "wanted, but never given out: " << to_text(c);
  }

  void bring_up(const Step& step) {
    nlohmann::json options = step.options;
    const int ranks = options.value("ranks", 1);
    options["policy"] = options;
    const AttemptNumber n = 1;
    const auto send = [&](EventBody body, AttemptNumber attempt = 0) {
      feed({step.run, attempt, 0, std::move(body)});
    };
    const auto submitted = body_from_json("submitted", options);
    ASSERT_TRUE(submitted);
    send(*submitted);
    send(SlotsGranted{
        step.options.value("slots", std::vector<std::string>(static_cast<size_t>(ranks), "cpu"))});
    send(CheckpointChosen{}, n);
    send(AttemptPrepared{"token"}, n);
    send(ShimStarted{"boot", 100, 1}, n);
    for (Rank r = 0; r < ranks; ++r)
      send(wire::RankStarted{r, 200 + r, 1}, n);
    for (Rank r = 0; r < ranks; ++r) {
      wire::RankHello hello;
      hello.rank = r;
      send(hello, n);
    }
    EXPECT_EQ(state_.runs.at(step.run).phase, RunState::kRunning);
  }

  static void expect_commands(std::vector<std::string> expected, const std::vector<Command>& got) {
    for (const Command& c : got) {
      const std::string text = to_text(c);
      const auto match = std::find_if(expected.begin(), expected.end(),
                                      [&](const std::string& e) { return text.starts_with(e); });
      if (match == expected.end())
        ADD_FAILURE() << "not expected: " << text;
      else
        expected.erase(match);
    }
    for (const std::string& e : expected)
      ADD_FAILURE() << "missing: " << e;
  }

  void expect_run(const Step& step) {
    if (step.phases.empty() && step.reasons.empty() && step.slots.empty()) return;
    const auto run = state_.runs.find(step.run);
    ASSERT_NE(run, state_.runs.end()) << "run " << step.run << " has left the state";
    std::string got = text_of(run->second.phase);
    if (step.phases.find(' ') != std::string::npos) got += " " + text_of(run->second.attempt.phase);
    EXPECT_EQ(got, step.phases.empty() ? got : step.phases);
    if (!step.slots.empty()) {
      EXPECT_EQ(run->second.attempt.slots, step.slots);
    }
    for (const std::string& reason : step.reasons)
      EXPECT_NE(run->second.reason.find(reason), std::string::npos)
          << "reason is '" << run->second.reason << "'";
  }

  static void expect_notes(const Step& step, const std::vector<Note>& notes) {
    for (const std::string& expected : step.notes) {
      const std::string kind = expected.substr(0, expected.find(' '));
      const std::string text =
          expected.size() > kind.size() ? expected.substr(kind.size() + 1) : "";
      EXPECT_TRUE(std::any_of(notes.begin(), notes.end(),
                              [&](const Note& n) {
                                return n.kind.view() == kind &&
                                       n.text.find(text) != std::string::npos;
                              }))
          << "no note " << expected << ", but "
          << (notes.empty() ? "none" : notes.front().kind.text() + " " + notes.front().text);
    }
  }

  void run(const std::vector<Step>& steps, const std::string& file) {
    for (const Step& step : steps) {
      SCOPED_TRACE(file + ":" + std::to_string(step.line));
      switch (step.kind) {
      case Step::Kind::kUp:
        bring_up(step);
        break;
      case Step::Kind::kAfter:
        now_ = now_ + from_seconds(step.seconds);
        break;
      case Step::Kind::kGone:
        EXPECT_EQ(state_.runs.count(step.run), 0u);
        break;
      case Step::Kind::kPending:
        expect_commands(step.commands, pending_commands(state_));
        break;
      case Step::Kind::kEvent: {
        const Applied applied = feed(step.event);
        EXPECT_EQ(applied.ignored, step.ignored);
        expect_commands(step.commands, applied.commands);
        expect_notes(step, applied.notes);
        expect_run(step);
        EXPECT_FALSE(describe(step.event).text.empty());
        break;
      }
      }
      if (HasFatalFailure()) return;
    }
  }

  State state_;
  WallTime now_{1'000'000'000'000'000'000};
  std::vector<Recorded> ledger_;
  std::vector<Command> given_;
};

TEST_P(Scenario, Holds) {
  const auto path = std::filesystem::path(test::source_folder()) / "tests/scenarios" / GetParam();
  const auto text = read_file(path);
  ASSERT_TRUE(text) << text.error().what;
  const auto steps = read_script(*text);
  ASSERT_TRUE(steps) << steps.error().what;
  ASSERT_FALSE(steps->empty());
  run(*steps, GetParam());
}

std::vector<std::string> scenario_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(test::source_folder()) / "tests/scenarios"))
    if (entry.path().extension() == ".scenario") names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Files, Scenario, testing::ValuesIn(scenario_files()),
                         [](const auto& info) {
                           std::string name = info.param.substr(0, info.param.find('.'));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

} // namespace

} // namespace nsa::state
