// The promises of nsactl demo. Each promise is broken once in a summary that is otherwise right.
// The tests also check how the demo runs commands, because Ctrl-C must leave no process behind.
#include "cli/demo/own_node.h"
#include "cli/demo/summary.h"
#include "common/spec/fault_table.h"
#include "common/spec/parse.h"
#include "tests/support/temporary_folder.h"

#include <chrono>
#include <csignal>
#include <gmock/gmock.h>
#include <thread>

namespace nsa::demo {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DemoPromises : public testing::Test {
protected:
  DemoPromises() { folder_.write("rank-1.txt", "stacks"); }
  Json right() const {
    return {{"final_state", "completed"},
            {"attempts", 2},
            {"ranks", 2},
            {"steps", 280},
            {"loss_first", 5.8},
            {"loss_last", 2.1},
            {"heldout_loss_last", 2.0},
            {"unigram_entropy_nats", 3.1},
            {"bigram_entropy_nats", 2.4},
            {"injected", {{"rank", 1}, {"step", 90}, {"kind", "spin"}}},
            {"hang",
             {{"rank", 1},
              {"step", 90},
              {"phase", "forward"},
              {"kind", "spinning"},
              {"detect_s", 5.0},
              {"evidence_path", folder_.path().string()},
              {"recover_s", 3.0}}},
            {"tokens_per_s", 3000.0},
            {"peak_rss_bytes", 1 << 28},
            {"compute_precision", {"fp32"}},
            {"sample", " a thing"}};
  }
  // `place` is a JSON pointer (RFC 6901).
  std::vector<std::string> broken(const char* place, const Json& value) const {
    Json summary = right();
    summary[Json::json_pointer(place)] = value;
    return broken_promises(summary);
  }
  test::TemporaryFolder folder_;
};

TEST_F(DemoPromises, HoldForASummaryThatIsRight) {
  EXPECT_THAT(broken_promises(right()), IsEmpty());
  EXPECT_THAT(told(right()), HasSubstr("spin on rank 1 at step 90"));
}

TEST_F(DemoPromises, NeedEveryValue) {
  int tried = 0;
  const Json flat = right().flatten();
  for (const auto& [place, value] : flat.items()) {
    if (place.starts_with("/compute_precision")) continue; // it is reported, but not promised
    EXPECT_THAT(broken(place.c_str(), nullptr), ElementsAre(HasSubstr("missing"))) << place;
    ++tried;
  }
  EXPECT_EQ(tried, 22);
  Json empty;
  empty["hang"] = nullptr;
  EXPECT_THAT(broken_promises(empty), ElementsAre(HasSubstr("heldout_loss_last")));
}

TEST_F(DemoPromises, EachIsHeldAgainstTheRun) {
  EXPECT_THAT(broken("/final_state", "stopped"), ElementsAre(HasSubstr("stopped after 2")));
  EXPECT_THAT(broken("/attempts", 1), ElementsAre(HasSubstr("completed after 1")));
  EXPECT_THAT(broken("/loss_last", 5.9), ElementsAre(HasSubstr("did not fall")));
  EXPECT_THAT(broken("/heldout_loss_last", 2.5), ElementsAre(HasSubstr("bigram")));
  EXPECT_THAT(broken("/hang/rank", 0), ElementsAre(HasSubstr("not what was injected")));
  EXPECT_THAT(broken("/hang/kind", "deadlocked"), ElementsAre(HasSubstr("not what was")));
  EXPECT_THAT(broken("/injected/kind", "exit"), ElementsAre(HasSubstr("not what was")));
  EXPECT_THAT(broken("/hang/step", 70), ElementsAre(HasSubstr("names step 70")));
  EXPECT_THAT(broken("/hang/evidence_path", "/nowhere"), ElementsAre(HasSubstr("no stacks")));
}

// Every fault that can be drawn has a name in verdicts.
TEST_F(DemoPromises, EveryFaultThatMayBeDrawnHasAVerdict) {
  for (const spec::FaultRow& row : spec::fault_table()) {
    if (!row.random) continue;
    Json summary = right();
    summary["injected"]["kind"] = text_of(row.kind);
    summary["hang"]["kind"] = "";
    EXPECT_THAT(broken_promises(summary), ElementsAre(HasSubstr("not what was injected")))
        << text_of(row.kind) << " has no verdict";
  }
}

TEST(DemoLosses, OfARepeatedStepTheLastAttemptCounts) {
  const auto losses = read_losses(R"({"kind":"step","step":1,"loss":5.5,"tokens_per_second":10}
{"kind":"step","step":2,"loss":5,"tokens_per_second":30}
{"kind":"evaluation","step":2,"loss":4.5}
{"kind":"step","step":2,"loss":4,"tokens_per_second":20}
{"kind":"step","step":3,"loss":null}
)");
  ASSERT_TRUE(losses) << losses.error().what;
  EXPECT_THAT(losses->training, ElementsAre(testing::Pair(1, 5.5), testing::Pair(2, 4)));
  EXPECT_THAT(losses->heldout, ElementsAre(testing::Pair(2, 4.5)));
  EXPECT_THAT(losses->tokens_per_second, ElementsAre(10, 20, 30));
  EXPECT_FALSE(read_losses("{"));
}

TEST(DemoRunFile, IsBuiltIn) {
  const spec::Parsed parsed = spec::parse_run_file(std::string(run_file()), "quickstart.toml", {});
  EXPECT_THAT(parsed.problems, IsEmpty());
  EXPECT_EQ(parsed.spec.parallel.ranks, 2);
}

Result<Ended> shell(const std::string& script, Interruption interruption, Signals& signals) {
  return run_command("/bin/sh", {"-c", script}, Streams::kTaken, interruption, signals);
}

TEST(DemoCommands, GiveBackTextAndCode) {
  Signals signals;
  const auto ended = shell("printf hello; exit 3", Interruption::kPassedOn, signals);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->out, "hello");
  EXPECT_EQ(ended->exit_code, 3);
  EXPECT_EQ(shell("kill -9 $$", Interruption::kPassedOn, signals)->exit_code, 128 + SIGKILL);
}

// A shell without job control starts programs in the background with SIG_IGN.
class DemoInterruption : public testing::TestWithParam<sighandler_t> {
protected:
  void SetUp() override { before_ = std::signal(SIGINT, GetParam()); }
  void TearDown() override { std::signal(SIGINT, before_); }

private:
  sighandler_t before_ = SIG_DFL;
};
INSTANTIATE_TEST_SUITE_P(Demo, DemoInterruption, testing::Values(SIG_DFL, SIG_IGN),
                         [](const auto& test) {
                           return test.param == SIG_IGN ? "InTheBackground" : "AtATerminal";
                         });

TEST_P(DemoInterruption, ASignalInterruptsTheCommandAndNotTheProgram) {
  Signals signals;
  std::jthread sender([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ::kill(::getpid(), SIGTERM);
  });
  const auto ended = shell("exec sleep 60", Interruption::kPassedOn, signals);
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->exit_code, 128 + SIGINT);
  EXPECT_TRUE(signals.came());
  // Later commands do not start, except those that end the run.
  EXPECT_EQ(shell("printf more", Interruption::kPassedOn, signals)->out, "");
  EXPECT_EQ(shell("printf end", Interruption::kIgnored, signals)->out, "end");
}

TEST(DemoCommands, NohupIsRespected) {
  for (const sighandler_t disposition : {SIG_IGN, SIG_DFL}) {
    const sighandler_t before = std::signal(SIGHUP, disposition);
    Signals signals;
    ::kill(::getpid(), SIGHUP);
    EXPECT_EQ(signals.came(), disposition == SIG_DFL);
    std::signal(SIGHUP, before);
  }
}

TEST(DemoNode, OneDemoAtATimeUsesAFolder) {
  const test::TemporaryFolder folder;
  Signals signals;
  EXPECT_FALSE(is_of_a_demo(folder.path() / "own"));
  {
    auto first = OwnNode::make(folder.path() / "own", "/bin/false", signals);
    ASSERT_TRUE(first) << first.error().what;
    EXPECT_TRUE(is_of_a_demo(folder.path() / "own"));
    const auto second = OwnNode::make(folder.path() / "own", "/bin/false", signals);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::kConflict);
    folder.write("own/notes", "somebody's");
    ASSERT_TRUE(first->remove());
  }
  EXPECT_FALSE(is_of_a_demo(folder.path() / "own"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "own/notes"));
  EXPECT_FALSE(OwnNode::make(folder.path() / std::string(100, 'x'), "/bin/false", signals));
}

} // namespace
} // namespace nsa::demo
