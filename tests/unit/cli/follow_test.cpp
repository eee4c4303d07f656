// Verbs that wait for something to happen: follow, wait, logs, events. They also report the end of
// a run.
#include "tests/unit/cli/commands_fixture.h"

#include "common/base/file.h"

#include <algorithm>

namespace nsa::cli {
namespace {

TEST_F(Commands, FollowMirrorsTheRunsEnd) {
  add_run("kaaaa", "running");
  auto script = when_followed([this] {
    daemon.service.emit_event({0, 1, "kaaaa", 1, 1, "hang_found", "error", "rank 1 hangs", {}});
    daemon.service.emit_state("kaaaa", "failed", "end");
  });
  const Outcome failed = run({"follow", "kaaaa"});
  script.join();
  EXPECT_EQ(failed.exit, 1);
  EXPECT_NE(failed.out.find("! rank 1 hangs\n"), std::string::npos) << failed.out;
  EXPECT_NE(failed.out.find("✖ failed"), std::string::npos);
  EXPECT_NE(failed.err.find("next: nsactl events kaaaa"), std::string::npos);
}

TEST_F(Commands, AFailureIsToldWithItsClassCulpritFirstErrorAndEvidence) {
  wire::RunDetail failed;
  daemon.on_loop([&] {
    wire::RunDetail& detail = daemon.service.add_run("kaaaa", "failed");
    detail.summary.ended_at = 1;
    detail.summary.attempt = 2;
    detail.summary.reason = "rank 1 ended with exit 3; out of restarts";
    detail.run_folder = daemon.folder;
    detail.attempts = {
        {1, "ended", "an earlier one", wire::FailureClass::kHang, 0, 5, 1, 2, {}},
        {2, "ended", "rank 1 ended with exit 3", wire::FailureClass::kCrash, 5, 9, 3, 4, {}}};
    detail.estimate = {{"memory_bytes", {{"total", 100 << 20}, {"on_gpu", 0}}},
                       {"disk_bytes", {{"total", 10 << 20}}},
                       {"seconds", nullptr}};
    detail.came = {{"peak_rank_resident_bytes", 110 << 20}, {"seconds", 61.0}};
    const auto event = [this](AttemptNumber attempt, Rank rank, const char* kind, json about) {
      daemon.service.emit_event(
          {0, 1, "kaaaa", attempt, rank, kind, "error", "text", std::move(about)});
    };
    event(1, 0, "rank_error", {{"what", "of the first attempt"}});
    event(2, 0, "rank_error", {{"what", "lost rank 1"}});
    event(2, 1, "attempt_failed", {{"class", "crash"}, {"next", "read its log"}});
    daemon.service.log_sources = {{2, 1, daemon.folder + "/r1.log", false}};
    failed = detail;
    return 0;
  });
  std::ofstream(daemon.folder + "/r1.log")
      << "2026-01-31T09:00:00Z stdout F no error, all is well\n"
         "2026-01-31T09:00:01Z stderr F a warning\n"
         "2026-01-31T09:00:02Z stderr F terminate called after throwing Bad\n"
         "2026-01-31T09:00:03Z stderr F Aborted\n";
  const Outcome done = run({"follow", "kaaaa"});
  EXPECT_EQ(done.exit, 1);
  for (const char* line :
       {"  class     crash, rank 1, attempt 2\n",
        "  error     terminate called after throwing Bad\n", "/logs/rank-1.log\n",
        "  advice    read its log\n",
        "  memory    110.0 MiB, estimated 100.0 MiB (10 % more came)\n", "  time      1m01s\n"})
    EXPECT_NE(done.out.find(line), std::string::npos) << line << " in\n" << done.out;
  EXPECT_NE(done.err.find("nsactl logs kaaaa --rank 1"), std::string::npos) << done.err;
  EXPECT_NE(run({"wait", "kaaaa"}).err.find("terminate called"), std::string::npos);
  // A hang's evidence is more useful than a log, and a rank's own error message is more useful than
  // its last line.
  daemon.on_loop([&] {
    daemon.service.runs.at("kaaaa").hangs = json::array(
        {{{"attempt", 2}, {"rank", 1}, {"kind", "spinning"}, {"evidence_path", "/e/hang-2"}}});
    daemon.service.emit_event(
        {0, 1, "kaaaa", 2, 1, "rank_error", "error", "text", {{"what", "CUDA is out of memory"}}});
    return 0;
  });
  const std::string hang = run({"follow", "kaaaa"}).out;
  EXPECT_NE(hang.find("  error     CUDA is out of memory\n  evidence  /e/hang-2\n"),
            std::string::npos)
      << hang;
}

// A newer nsad may send words that this nsactl does not know.
TEST_F(Commands, AnUnknownWordIsShownAsItCame) {
  daemon.on_loop([&] {
    wire::RunDetail& detail = daemon.service.add_run("kaaaa", "hibernating");
    detail.ranks.resize(1);
    detail.ranks[0].state = ChoiceOrText<wire::RankStatus>("thawing");
    detail.attempts.resize(2);
    detail.attempts[1].failure_class = ChoiceOrText<wire::FailureClass>("cosmic-ray");
    wire::CheckpointView checkpoint;
    checkpoint.state = ChoiceOrText<wire::CheckpointState>("archived");
    detail.checkpoints = {checkpoint};
    daemon.service.emit_event({0, 1, "kaaaa", 1, 0, "slept", "notice", "sleeps well", {}});
    return 0;
  });
  EXPECT_NE(run({"ls"}).out.find("hibernating"), std::string::npos);
  EXPECT_EQ(json::parse(run({"ls", "-o", "json"}).out)["items"][0]["state"], "hibernating");
  const Outcome page = run({"status", "kaaaa"});
  for (const char* word : {"hibernating", "thawing", "archived"})
    EXPECT_NE(page.out.find(word), std::string::npos) << word << " in\n" << page.out;
  const json status = json::parse(run({"status", "kaaaa", "-o", "json"}).out);
  EXPECT_EQ(status["attempts"][1]["failure_class"], "cosmic-ray");
  EXPECT_NE(run({"events", "kaaaa", "-o", "wide"}).out.find("slept attempt 1: sleeps well"),
            std::string::npos);
  // nsactl does not know this type of line. The end of the run still ends the command.
  auto script = when_followed([this] {
    daemon.service.emit_state("kaaaa", "dreaming", "dream");
    daemon.service.emit_state("kaaaa", "forgotten", "end");
  });
  const Outcome followed = run({"follow", "kaaaa"});
  script.join();
  EXPECT_NE(followed.out.find("dreaming"), std::string::npos) << followed.out;
  EXPECT_EQ(followed.exit, 1) << "an end that is not known is no good one";
}

TEST_F(Commands, HintsFitTheEnd) {
  for (const auto& [state, exit, expected, unexpected] :
       std::vector<std::tuple<std::string, int, std::string, std::string>>{
           {"completed", 0, "ckpt ls", "resume"},
           {"stopped", 0, "resume", "logs"},
           {"cancelled", 1, "rm k", "logs"},
           {"failed", 1, "logs k", "rm k"}}) {
    const std::string id = "k" + state.substr(0, 4);
    daemon.on_loop([&] {
      daemon.service.add_run(id, state).summary.ended_at = 1;
      return 0;
    });
    const Outcome done = run({"follow", id});
    EXPECT_EQ(done.exit, exit) << state;
    EXPECT_NE(done.err.find(expected), std::string::npos) << state << ": " << done.err;
    EXPECT_EQ(done.err.find(unexpected), std::string::npos) << state << ": " << done.err;
  }
}

TEST_F(Commands, SubmitAndResumeWaitAndSayHowItEnded) {
  auto script = when_followed([this] { daemon.service.emit_state("kabcd", "failed", "end"); });
  const Outcome submitted = run({"submit", "-", "--wait"}, "schema = 1\n");
  script.join();
  EXPECT_EQ(submitted.exit, 1);
  EXPECT_NE(submitted.out.find("✖ failed"), std::string::npos) << submitted.out;
  script = when_followed([this] { daemon.service.emit_state("kabcd", "completed", "end"); });
  const Outcome resumed = run({"resume", "kabcd", "--wait"});
  script.join();
  EXPECT_EQ(resumed.exit, 0) << resumed.err;
  EXPECT_EQ(resumed.out.find("resumed kabcd"), 0u);
  EXPECT_NE(resumed.out.find("✔ completed"), std::string::npos) << resumed.out;
}

TEST_F(Commands, SubmitFollowShowsWhatHappenedBeforeTheStream) {
  daemon.on_loop([&] {
    daemon.service.emit_event({0, 1, "kabcd", 1, -1, "submitted", "info", "submitted by me", {}});
    return 0;
  });
  auto script = when_followed([this] { daemon.service.emit_state("kabcd", "completed", "end"); });
  const Outcome done = run({"submit", "-", "--follow"}, "schema = 1\n");
  script.join();
  EXPECT_EQ(done.exit, 0) << done.err;
  EXPECT_NE(done.out.find("· submitted by me\n"), std::string::npos) << done.out;
}

TEST_F(Commands, FollowAsJsonIsOneLineAnEvent) {
  add_run("kaaaa", "running");
  auto script = when_followed([this] { daemon.service.emit_state("kaaaa", "completed", "end"); });
  const Outcome done = run({"follow", "kaaaa", "-o", "json"});
  script.join();
  std::istringstream lines(done.out);
  std::vector<std::string> types;
  for (std::string line; std::getline(lines, line);)
    types.push_back(json::parse(line)["type"]);
  EXPECT_EQ(types, (std::vector<std::string>{"state", "end"}));
}

TEST_F(Commands, FollowOutlivesARestartOfTheDaemonAndMissesNoEvent) {
  add_run("kaaaa", "running");
  std::thread script = kill_and_end([this] {
    daemon.service.emit_event({0, 1, "kaaaa", 1, 0, "rank_error", "error", "said meanwhile", {}});
  });
  const Outcome done = run({"follow", "kaaaa"});
  script.join();
  EXPECT_EQ(done.exit, 0) << done.err;
  EXPECT_NE(done.out.find("nsad has ended"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("! said meanwhile\n"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("nsad is back"), std::string::npos);
}

TEST_F(Commands, FollowedLogsAndEventsOutliveARestartOfTheDaemon) {
  const std::string log = daemon.folder + "/r0.log";
  const auto write = [&](int from, int to) {
    std::ofstream file(log, std::ios::app);
    for (int i = from; i < to; ++i) // the same time for all
      file << "2026-01-31T09:00:00Z stdout F line " + std::to_string(i) + "\n";
  };
  write(0, 100);
  add_run("kaaaa", "running");
  daemon.on_loop([&] {
    daemon.service.log_sources = {{1, 0, log, true}, {1, 1, daemon.folder + "/silent.log", true}};
    return 0;
  });
  std::thread script = kill_and_end([&] { write(100, 200); });
  const Outcome done = run({"logs", "-f", "kaaaa"});
  script.join();
  EXPECT_EQ(done.exit, 0) << done.err;
  std::string expected;
  for (int i = 90; i < 200; ++i)
    expected += "[rank 0] line " + std::to_string(i) + "\n";
  EXPECT_EQ(done.out, expected);
  EXPECT_NE(done.err.find("nsad is back"), std::string::npos) << done.err;

  add_run("kbbbb", "running");
  const auto say = [this](const std::string& text) {
    daemon.service.emit_event({0, 1, "kbbbb", 1, -1, "x", "info", text, {}});
  };
  daemon.on_loop([&] { return say("early"), say("before"), 0; });
  script = kill_and_end([&] { say("meanwhile"); }, "kbbbb");
  const Outcome events = run({"events", "-f", "--tail", "1", "kbbbb", "-o", "json"});
  script.join();
  std::istringstream lines(events.out);
  std::string texts;
  for (std::string line; std::getline(lines, line);)
    texts += json::parse(line)["text"].get<std::string>() + " ";
  EXPECT_EQ(texts, "before meanwhile ");
}

TEST_F(Commands, WaitForStatesStepsAndTime) {
  add_run("kaaaa", "running");
  EXPECT_EQ(run({"wait", "kaaaa", "--for", "running"}).exit, 0);
  EXPECT_EQ(run({"wait", "kaaaa", "--timeout", "1ms"}).exit, 8);
  EXPECT_EQ(run({"wait", "kaaaa", "--for", "stpe=9"}).exit, 2);
  auto script = when_followed([this] {
    daemon.service.runs.at("kaaaa").summary.step = 10;
    daemon.service.emit_state("kaaaa", "running");
  });
  EXPECT_EQ(run({"wait", "kaaaa", "--for", "step=10"}).exit, 0);
  script.join();
  add_run("kbbbb", "failed");
  EXPECT_EQ(run({"wait", "kbbbb"}).exit, 1);
  EXPECT_EQ(run({"wait", "kbbbb", "--for", "completed"}).exit, 1);
  add_run("kcccc", "completed");
  EXPECT_EQ(run({"wait", "kcccc"}).out, "kcccc  completed\n");
}

TEST_F(Commands, LogsAndEvents) {
  add_run("kaaaa", "running");
  std::ofstream(daemon.folder + "/r0.log") << "2026-01-31T09:00:00Z stdout F zero\n";
  std::ofstream(daemon.folder + "/r1.log") << "2026-01-31T09:00:01Z stderr F one\n";
  daemon.on_loop([&] {
    daemon.service.log_sources = {{1, 0, daemon.folder + "/r0.log", true},
                                  {1, 1, daemon.folder + "/r1.log", true}};
    for (int i = 0; i < 2500; ++i) // more than a page
      daemon.service.emit_event(
          {0, 1, "kaaaa", 1, -1, "x", "info", "event " + std::to_string(i), {}});
    return 0;
  });
  EXPECT_EQ(run({"logs", "kaaaa"}).out, "[rank 0] zero\n[rank 1] one\n");
  EXPECT_EQ(run({"logs", "kaaaa", "--rank", "1"}).out, "one\n");
  EXPECT_EQ(run({"logs", "kaaaa", "-n", "1", "-t"}).out, "2026-01-31T09:00:01Z [rank 1] one\n");
  const Outcome silent = run({"logs", "kaaaa", "--since", "1h", "--rank", "1"});
  EXPECT_EQ(silent.out, "");
  EXPECT_EQ(silent.exit, 0);
  EXPECT_EQ(
      silent.err.find("rank 1 wrote nothing in the last 1h; the newest line is of 2026-01-31"), 0u)
      << silent.err;
  EXPECT_EQ(run({"logs", "kaaaa"}).err, "");
  EXPECT_EQ(run({"logs", "kaaaa", "--rank", "x"}).exit, 2);
  EXPECT_EQ(json::parse(run({"events", "kaaaa", "-o", "json"}).out)["items"].size(), 2500u);
  EXPECT_NE(run({"events"}).out.find("kaaaa "), std::string::npos);
  const json last = json::parse(run({"events", "kaaaa", "--tail", "2", "-o", "json"}).out);
  ASSERT_EQ(last["items"].size(), 2u);
  EXPECT_EQ(last["items"][1]["text"], "event 2499");
}

} // namespace
} // namespace nsa::cli
