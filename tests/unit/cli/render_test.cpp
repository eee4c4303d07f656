#include "cli/render/follow_screen.h"
#include "cli/render/problems.h"
#include "cli/render/run_views.h"
#include "cli/render/table.h"
#include "cli/render/text.h"

#include <cmath>
#include <cstdlib>
#include <ctime>
#include <gtest/gtest.h>
#include <sstream>

namespace nsa::render {
namespace {

constexpr Style kPlain{false, true}, kAscii{false, false}, kColour{true, true};
constexpr int64_t kSecond = 1'000'000'000;
// This is 2026-01-31T14:00:00Z.
constexpr WallTime kNow{1'769'868'000 * kSecond};

WallTime before(double seconds) {
  return kNow + from_seconds(-seconds);
}

class Screens : public ::testing::Test {
protected:
  void SetUp() override {
    ::setenv("TZ", "America/New_York", 1); // times are in UTC in every time zone
    ::tzset();
  }
};

TEST(Table, PadsByColumnsNotBytes) {
  Table table({"ID", "TREND", "N"});
  table.right(2);
  table.add({"a", "▇▅▃", "7"});
  table.add({"bcd", "\033[32m●\033[0m x", "1234"});
  EXPECT_EQ(table.print(0), "ID   TREND     N\n"
                            "a    ▇▅▃       7\n"
                            "bcd  \033[32m●\033[0m x    1234\n");
}

TEST(Table, ColumnsGiveWayInTheirOrder) {
  Table table({"ID", "NAME", "RATE", "WHY"});
  table.add({"k1", "a-long-name", "12.5k", "waits for a slot"});
  table.give_way(3, 8);
  table.give_way(2, 0);
  table.give_way(1, 6);
  EXPECT_EQ(table.print(0),
            "ID  NAME         RATE   WHY\nk1  a-long-name  12.5k  waits for a slot\n");
  EXPECT_EQ(table.print(34), "ID  NAME         RATE   WHY\nk1  a-long-name  12.5k  waits for…\n");
  EXPECT_EQ(table.print(25), "ID  NAME         WHY\nk1  a-long-name  waits f…\n");
  EXPECT_EQ(table.print(20), "ID  NAME    WHY\nk1  a-lon…  waits f…\n");
  EXPECT_EQ(table.print(12), "ID  NAME   …\nk1  a-lon… …\n") << "at last the line is cut";
}

TEST(Table, CutsToTheWidthAndKeepsColourEnds) {
  EXPECT_EQ(elide("abcdef", 6), "abcdef");
  EXPECT_EQ(elide("abcdef", 4), "abc…");
  EXPECT_EQ(elide("abcdef", 5, false), "ab...");
  EXPECT_EQ(elide("\033[31mabcdef\033[0m", 3), "\033[31mab…\033[0m");
  EXPECT_EQ(display_width("\033[31m●é\033[0m"), 2);
}

TEST(Text, Sparklines) {
  EXPECT_EQ(sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 8, kPlain), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({8, 8, 1, 1}, 2, kPlain), "█▁"); // buckets are averaged
  EXPECT_EQ(sparkline({5, 5}, 8, kPlain), "▁▁");
  EXPECT_EQ(sparkline({1, NAN, 8}, 8, kPlain), "▁!█");
  EXPECT_EQ(sparkline({}, 8, kPlain), "");
  for (const char c : sparkline({1, 2, 3, 4, 5, 6, 7, 8}, 8, kAscii))
    EXPECT_LT(static_cast<unsigned char>(c), 128);
}

TEST(Text, BarsNeverOverflow) {
  EXPECT_EQ(bar(0, 4, kPlain), "[----]");
  EXPECT_EQ(bar(0.5, 4, kPlain), "[██--]");
  EXPECT_EQ(bar(0.57, 4, kPlain), "[██▎-]");
  EXPECT_EQ(bar(7, 4, kPlain), "[████]");
  EXPECT_EQ(bar(-1, 4, kAscii), "[....]");
  for (int i = 0; i <= 100; ++i)
    EXPECT_EQ(display_width(bar(i / 100.0, 10, kPlain)), 12) << i;
}

TEST_F(Screens, AgesAndTimes) {
  EXPECT_EQ(age({0}, kNow), "-");
  EXPECT_EQ(age(before(0.4), kNow), "now");
  EXPECT_EQ(age(before(59), kNow), "59s");
  EXPECT_EQ(age(before(61), kNow), "1m");
  EXPECT_EQ(age(before(3601), kNow), "1h");
  EXPECT_EQ(age(before(3 * 86400), kNow), "3d");
  EXPECT_EQ(clock_time(before(1), kNow), "13:59:59Z");
  EXPECT_EQ(clock_time(before(86400), kNow), "2026-01-30 14:00:00Z");
}

TEST(Text, StatesCarryAMarkBesidesTheirColour) {
  EXPECT_EQ(state_mark(wire::RunState::kRunning, kPlain), "● running");
  EXPECT_EQ(state_mark(wire::RunState::kFailed, kAscii), "x failed");
  EXPECT_EQ(state_mark(wire::RunState::kFailed, kColour), "\033[31m✖ failed\033[0m");
  const ChoiceOrText<wire::RunState> unknown("a state of the future");
  EXPECT_EQ(state_mark(unknown, kPlain), "a state of the future");
  EXPECT_FALSE(is_ended(unknown));
  EXPECT_TRUE(is_ended(wire::RunState::kStopped));
  EXPECT_FALSE(is_ended(wire::RunState::kRestarting));
}

TEST(Problems, EveryPlaceAndHint) {
  EXPECT_EQ(problems_text({{"run.toml", 2, 10, "train.steps", "is no number", "write 60"},
                           {"other.toml", 2, 1, "", "elsewhere", ""},
                           {"--set", 0, 0, "", "unknown key modle", ""}},
                          "run.toml", "[train]\n\tsteps = x\n"),
            "error: train.steps: is no number\n"
            "  --> run.toml:2:10\n"
            "    |\n"
            "  2 | \tsteps = x\n"
            "    | \t        ^\n"
            "  hint: write 60\n"
            "error: elsewhere\n"
            "  --> other.toml:2:1\n"
            "error: unknown key modle\n"
            "  --> --set\n");
  const std::string poison = std::string(500, 'a') + "!" + std::string(80'000, 'b');
  EXPECT_EQ(problems_text({{"run.toml", 1, 501, "", "no key", ""}}, "run.toml", poison),
            "error: no key\n"
            "  --> run.toml:1:501\n"
            "    |\n"
            "  1 | " +
                std::string(60, 'a') + "!" + std::string(59, 'b') +
                "\n"
                "    | " +
                std::string(60, ' ') + "^\n");
  EXPECT_EQ(error_text({ErrorCode::kNotFound, "no run x", "nsactl ls"}),
            "error: no run x\n  hint: nsactl ls\n");
}

wire::RunSummary running() {
  wire::RunSummary run;
  run.id = "kabcd";
  run.name = "brave-otter";
  run.state = wire::RunState::kRunning;
  run.attempt = 1;
  run.ranks = 2;
  run.step = 120;
  run.steps = 300;
  run.tokens = 491'520;
  run.loss = 3.982;
  run.has_loss = true;
  run.loss_trend = {8, 7, 6, 5, 4, 3};
  run.tokens_per_second = 1'710'000;
  run.eta_seconds = 1080;
  run.data_wait_ratio = 0.0004;
  run.exposed_communication_ratio = 0.0041;
  run.submitted_at = before(720).nanoseconds;
  run.started_at = before(700).nanoseconds;
  return run;
}

TEST_F(Screens, RunsTable) {
  wire::RunSummary queued;
  queued.id = "kqqqq";
  queued.name = "calm-heron";
  queued.state = wire::RunState::kQueued;
  queued.reason = "waits for 2 CPU slots, 1 is free";
  queued.submitted_at = before(5).nanoseconds;
  wire::RunSummary failed = running();
  failed.id = "kffff";
  failed.name = "grim-vole";
  failed.state = wire::RunState::kFailed;
  failed.reason = "loss is not finite";
  failed.inject = "non_finite";
  failed.restarts = 3;
  EXPECT_EQ(runs_table({running(), queued, failed}, kNow, {kPlain, 0, false}),
            "ID     NAME         STATE         STEP   LOSS  TREND   TOK/S  RST  AGE  REASON\n"
            "kabcd  brave-otter  ● running  120/300  3.982  █▇▅▄▂▁  1.71M    0  12m\n"
            "kqqqq  calm-heron   ◌ queued         0      -              -    0   5s"
            "  waits for 2 CPU slots, 1 is free\n"
            "kffff  grim-vole    ✖ failed   120/300  3.982  █▇▅▄▂▁      -    3  12m"
            "  INJECT non_finite; loss is not finite\n");
  EXPECT_EQ(runs_table({running(), queued, failed}, kNow, {kPlain, 60, false}),
            "ID     NAME         STATE         STEP  REASON\n"
            "kabcd  brave-otter  ● running  120/300\n"
            "kqqqq  calm-heron   ◌ queued         0  waits for 2 CPU slo…\n"
            "kffff  grim-vole    ✖ failed   120/300  INJECT non_finite; …\n")
      << "a narrow terminal keeps what matters";
}

wire::RunDetail detail() {
  wire::RunDetail detail;
  detail.summary = running();
  detail.summary.inject = "spin";
  detail.summary.restarts = detail.summary.hangs = 1;
  detail.summary.attempt = 2;
  detail.run_folder = "/state/runs/kabcd";
  detail.figures = {{"gradient_norm", 0.8125},
                    {"slowest_step_seconds", 0.42},
                    {"clipped_steps", 3}, // it is not shown there
                    {"of_a_newer_nsad", 1}};
  wire::RankView rank;
  rank.state = wire::RankStatus::kRunning;
  rank.phase = "forward";
  rank.step = 120;
  rank.phase_age_seconds = 0.04;
  rank.step_seconds = 0.31;
  rank.resident_bytes = 200 << 20;
  detail.ranks = {rank, rank};
  detail.ranks[0].exposed_communication_ratio = 0.0137;
  detail.ranks[1].rank = 1;
  detail.ranks[1].exposed_communication_ratio = 0.0055;
  detail.attempts = {{1,
                      "failed",
                      "hang of rank 1",
                      wire::FailureClass::kHang,
                      0,
                      61,
                      before(700).nanoseconds,
                      before(600).nanoseconds,
                      {}},
                     {2, "running", "", {}, 50, 120, before(590).nanoseconds, 0, {}}};
  detail.hangs = nlohmann::json::array({{{"rank", 1},
                                         {"step", 61},
                                         {"phase", "forward"},
                                         {"kind", "spinning"},
                                         {"detect_seconds", 10.25},
                                         {"recover_seconds", 4.5},
                                         {"evidence_path", "/state/runs/kabcd/hang-1"}}});
  detail.last_events = {{7,
                         before(600).nanoseconds,
                         "kabcd",
                         1,
                         1,
                         wire::EventKind::kHangFound,
                         wire::Severity::kError,
                         "hang: rank 1 spinning",
                         {}}};
  return detail;
}

TEST_F(Screens, RunPage) {
  EXPECT_EQ(run_page(detail(), kNow, {kPlain, 0, false}),
            "brave-otter (kabcd)  ● running  11m40s  attempt 2  2 ranks\n"
            " INJECT   a fault is made on purpose: spin\n"
            " step     120/300 [████████------------]  491.5k tokens  1.71M tok/s  ETA 18m00s\n"
            " loss     3.982 █▇▅▄▂▁\n"
            " figures  gradient norm 0.812, slowest step 420ms\n"
            " waits    data 0.0 %, communication 0.4 %, slower ranks up to 1.0 % of the time\n"
            " restarts 1, hangs 1\n"
            " folder   /state/runs/kabcd\n"
            "\n"
            "RANK  STATE    PHASE    STEP   AGE  STEP-TIME  PEER-WAIT        RSS\n"
            "   0  running  forward   120  40ms      310ms      1.4 %  200.0 MiB\n"
            "   1  running  forward   120  40ms      310ms      0.5 %  200.0 MiB\n"
            "\n"
            "ATTEMPT  STATE    STEPS   TIME   REASON\n"
            "      1  failed   0-61    1m40s  hang of rank 1\n"
            "      2  running  50-120  9m50s  -\n"
            "\n"
            "Hangs\n"
            "  rank 1 spinning in forward at step 61, found after 10.2s, recovered 4.5s later\n"
            "    evidence: /state/runs/kabcd/hang-1\n"
            "\n"
            "Last events\n"
            "  13:50:00Z ! hang: rank 1 spinning\n");
}

TEST_F(Screens, AResumeIsNoRestart) {
  wire::RunDetail resumed = detail();
  resumed.summary.restarts = 0;
  resumed.summary.resumes = 2;
  resumed.summary.inject = "";
  EXPECT_NE(
      run_page(resumed, kNow, {kPlain, 0, false}).find(" restarts 0, hangs 1, resumed 2 times\n"),
      std::string::npos);
  EXPECT_NE(end_summary(resumed, {}, {kPlain, 0, false})
                .find("  restarts  0, resumed 2 times (attempts 2)\n"),
            std::string::npos);
}

TEST_F(Screens, WhatWasEstimatedStandsBesideWhatCame) {
  const nlohmann::json estimate = {{"memory_bytes", {{"total", 300 << 20}, {"on_gpu", 200 << 20}}},
                                   {"disk_bytes", {{"total", 100 << 20}}},
                                   {"seconds", 60}};
  EXPECT_EQ(estimate_text(estimate, nullptr), "") << "before the end there is nothing to hold";
  EXPECT_EQ(estimate_text(estimate, {{"peak_rank_resident_bytes", 50 << 20},
                                     {"peak_rank_allocated_bytes", 190 << 20},
                                     {"seconds", 90.0},
                                     {"disk_bytes", 100 << 20}}),
            "memory   50.0 MiB\n"
            "GPU      190.0 MiB, estimated 200.0 MiB (5 % less came)\n"
            "time     1m30s, estimated 1m00s (50 % more came)\n"
            "disk     100.0 MiB, estimated 100.0 MiB\n");
}

TEST_F(Screens, AReasonSaysHowLongItMayLast) {
  wire::RunSummary run = running();
  run.state = wire::RunState::kStopping;
  run.reason = "stop requested by ann";
  EXPECT_EQ(reason_of(run, kNow), "stop requested by ann");
  run.waits_until = before(-330).nanoseconds;
  EXPECT_EQ(reason_of(run, kNow), "stop requested by ann; at the latest at 14:05:30Z");
  run.state = wire::RunState::kRestarting;
  run.reason = "rank 1 died";
  EXPECT_EQ(reason_of(run, kNow), "rank 1 died; the next attempt begins in 5m30s");
  run.waits_until = before(1).nanoseconds;
  EXPECT_EQ(reason_of(run, kNow), "rank 1 died");
}

TEST_F(Screens, LinesFitTheTerminal) {
  std::istringstream page(run_page(detail(), kNow, {kColour, 50, false}) +
                          runs_table({running()}, kNow, {kColour, 50, false}));
  bool table = false;
  for (std::string line; std::getline(page, line);) {
    table |= line.rfind("RANK", 0) == 0;
    const bool checked = table && line.rfind("  rank", 0) != 0;
    EXPECT_TRUE(!checked || display_width(line) <= 50) << line;
  }
}

TEST_F(Screens, Checkpoints) {
  wire::CheckpointView good;
  good.step = 50;
  good.tokens = 204'800;
  good.bytes = 1'500'000'000;
  good.attempt = 1;
  good.state = wire::CheckpointState::kVerified;
  good.written_at = before(90).nanoseconds;
  wire::CheckpointView bad = good;
  bad.step = 100;
  bad.state = wire::CheckpointState::kCorrupt;
  bad.problem = "model.safetensors: checksum differs";
  EXPECT_EQ(checkpoints_table({good, bad}, kNow, {kPlain, 0, false}),
            "CHECKPOINT  STATE     TOKENS     SIZE  ATTEMPT  AGE  PROBLEM\n"
            "step 50     verified  204.8k  1.4 GiB        1   1m\n"
            "step 100    corrupt   204.8k  1.4 GiB        1   1m  "
            "model.safetensors: checksum differs\n");
}

wire::FollowLine line_of(wire::LineType type, const wire::RunSummary& summary) {
  wire::FollowLine line;
  line.type = type;
  line.summary = summary;
  return line;
}

wire::FollowLine event_of(int64_t sequence, const std::string& kind, const std::string& severity,
                          const std::string& text, AttemptNumber attempt, double age_seconds,
                          nlohmann::json json = {}) {
  wire::FollowLine line;
  line.type = wire::LineType::kEvent;
  line.event = {sequence,
                before(age_seconds).nanoseconds,
                "kabcd",
                attempt,
                -1,
                ChoiceOrText<wire::EventKind>(kind),
                ChoiceOrText<wire::Severity>(severity),
                text,
                std::move(json)};
  return line;
}

// Plays a hang and its recovery as a stream sends them.
void play(FollowScreen& screen) {
  wire::RunSummary run = running();
  run.inject = "spin";
  screen.line(line_of(wire::LineType::kState, run));
  screen.line(event_of(1, "rank_memory", "info", "memory of no interest", 1, 60));
  screen.line(event_of(2, "hang_found", "error", "hang: rank 1 spinning in forward at step 120", 1,
                       40, {{"step", 120}}));
  screen.line(event_of(2, "hang_found", "error", "a double", 1, 40));
  run.state = wire::RunState::kRestarting;
  run.reason = "hang of rank 1";
  screen.line(line_of(wire::LineType::kState, run));
  run.state = wire::RunState::kRunning;
  run.reason = "";
  run.attempt = 2;
  screen.line(line_of(wire::LineType::kState, run));
  screen.line(event_of(3, "first_step", "info", "attempt 2 completed its first step, 101", 2, 19,
                       {{"step", 101}}));
  screen.line(
      event_of(4, "recovered", "info", "recovered from the hang of rank 1 in 21.0s", 2, 19));
  run.state = wire::RunState::kCompleted;
  run.step = 300;
  screen.line(line_of(wire::LineType::kEnd, run));
}

TEST_F(Screens, FollowWithoutATerminalIsPlainLines) {
  std::ostringstream out;
  FollowScreen screen(out, {kPlain, false, {}}, [] { return kNow; });
  play(screen);
  screen.finish();
  EXPECT_TRUE(screen.ended());
  EXPECT_EQ(out.str(),
            "INJECT: a fault will be made on purpose: spin\n"
            "14:00:00Z ● running  step 120/300 40%  loss 3.982  1.71M tok/s  ETA 18m00s\n"
            "13:59:20Z ! hang: rank 1 spinning in forward at step 120\n"
            "14:00:00Z ↻ restarting: hang of rank 1  step 120/300 40%  loss 3.982  1.71M tok/s"
            "  ETA 18m00s\n"
            "14:00:00Z ● running  step 120/300 40%  loss 3.982  1.71M tok/s  ETA 18m00s"
            "  attempt 2\n"
            "13:59:41Z · attempt 2 completed its first step, 101\n"
            "13:59:41Z ✔ recovered from the hang of rank 1 in 21.0s; 20 steps are computed again\n"
            "14:00:00Z ✔ completed  step 300/300 100%  loss 3.982  attempt 2\n");
}

TEST_F(Screens, FollowOnATerminalRedrawsOneLine) {
  std::ostringstream out;
  FollowScreen screen(out, {kPlain, true, [] { return 60; }}, [] { return kNow; });
  play(screen);
  screen.tick();
  screen.finish();
  const std::string text = out.str();
  EXPECT_NE(text.find("\r\033[K13:59:20Z ! hang: rank 1 spinning in forward at step 120\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("a double"), std::string::npos);
  EXPECT_EQ(text.find("no interest"), std::string::npos);
  // Status lines have no newline at their end, so the next one overwrites them. The last one stays.
  const size_t last = text.rfind("\r\033[K");
  EXPECT_EQ(text.substr(last + 4), "✔ completed  step 300/300 [████████████████████] 100%  los…\n");
  for (size_t at = 0; (at = text.find("\r\033[K●", at)) != std::string::npos; ++at)
    EXPECT_LT(text.find('\r', at + 1), text.find('\n', at + 1)) << "a status line was not redrawn";
}

// The terminal becomes narrower while it shows the status.
TEST_F(Screens, FollowKeepsToTheWidthOfNow) {
  std::ostringstream out;
  WallTime now = kNow;
  int width = 100;
  FollowScreen screen(out, {kPlain, true, [&] { return width; }}, [&] { return now; });
  screen.line(line_of(wire::LineType::kState, running()));
  const size_t wide = out.str().size();
  width = 30;
  now = now + from_seconds(1);
  screen.tick();
  const std::string narrow = out.str().substr(wide);
  EXPECT_EQ(narrow.substr(0, 5), "\n\r\033[K") << "what has wrapped stays";
  EXPECT_EQ(display_width(narrow.substr(5)), 29);
  width = 60;
  now = now + from_seconds(1);
  const size_t before = out.str().size();
  screen.tick();
  EXPECT_EQ(out.str().substr(before, 4), "\r\033[K") << "a wider one is redrawn in place";
}

TEST_F(Screens, ADeadRankIsRecoveredFromToo) {
  std::ostringstream out;
  WallTime now = kNow;
  FollowScreen screen(out, {kPlain, false, {}}, [&] { return now; });
  wire::RunSummary run = running();
  run.state = wire::RunState::kRestarting;
  screen.line(line_of(wire::LineType::kState, run));
  run.state = wire::RunState::kRunning;
  run.attempt = 2;
  now = now + from_seconds(9);
  screen.line(line_of(wire::LineType::kState, run));
  screen.line(event_of(1, "first_step", "info", "attempt 2 completed its first step, 101", 2, -7,
                       {{"step", 101}}));
  EXPECT_NE(out.str().find("✔ recovered 7.0s after the failure; 20 steps are computed again\n"),
            std::string::npos)
      << out.str();
}

TEST_F(Screens, StepsMoveTheScreenBetweenStates) {
  std::ostringstream out;
  FollowScreen screen(out, {kPlain, true, {}}, [] { return kNow; });
  screen.line(line_of(wire::LineType::kState, running()));
  wire::FollowLine step;
  step.type = wire::LineType::kStep;
  step.data = {{"step", 150}, {"loss", 2.5}, {"tokens_per_second", 10.0}};
  screen.line(step);
  EXPECT_EQ(screen.summary().step, 150u);
  EXPECT_EQ(out.str().find("step 150/300"), std::string::npos) << "drawn twice at one time";
  screen.tick();
  EXPECT_NE(out.str().find("step 150/300"), std::string::npos);
  EXPECT_NE(out.str().find("loss 2.500"), std::string::npos);
}

TEST_F(Screens, PlainStatusLinesAreRare) {
  std::ostringstream out;
  WallTime now = kNow;
  FollowScreen screen(out, {kPlain, false, {}}, [&] { return now; });
  for (int i = 0; i < 100; ++i) { // a hundred steps in ten seconds
    screen.line(line_of(wire::LineType::kStep, running()));
    now = now + from_seconds(0.1);
  }
  const std::string text = out.str();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2);
}

} // namespace
} // namespace nsa::render
