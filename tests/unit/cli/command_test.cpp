// Verbs from words to exit code, over a real socket to a service in memory.
#include "cli/command.h"
#include "cli/verbs.h"
#include "common/base/file.h"
#include "common/spec/parse.h"
#include "tests/support/fake_service.h"
#include "tests/support/test_paths.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace nsa::cli {
namespace {

using nlohmann::json;
using testing_support::FakeDaemon;

struct Outcome {
  int exit = -1;
  std::string out, err;
};

class Commands : public ::testing::Test {
protected:
  Outcome run(std::vector<std::string> words, const std::string& input = "") {
    words.insert(words.begin(), {"--socket", daemon.socket});
    std::ostringstream out, err;
    std::istringstream in(input);
    Outcome outcome;
    outcome.exit = run_command(all_verbs(), words, {out, err, in});
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }
  // As a person at a terminal who types `input`.
  Outcome run_on_terminal(std::vector<std::string> words, const std::string& input) {
    words.insert(words.begin(), {"--socket", daemon.socket});
    std::ostringstream out, err;
    std::istringstream in(input);
    Terminal terminal{out, err, in};
    terminal.err_is_terminal = terminal.in_is_terminal = true;
    Outcome outcome;
    outcome.exit = run_command(all_verbs(), words, terminal);
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }
  std::string run_file(const std::string& text) {
    const std::string path = daemon.folder + "/run.toml";
    std::ofstream(path) << text;
    return path;
  }
  void add_run(const std::string& id, const std::string& state) {
    daemon.on_loop([&] {
      wire::RunDetail& detail = daemon.service.add_run(id, state);
      if (state == "completed" || state == "failed") detail.summary.ended_at = 1;
      return 0;
    });
  }
  // Does something once a follower is there.
  template <class Work> std::thread when_followed(Work work) {
    return std::thread([this, work] {
      EXPECT_TRUE(daemon.wait_until([this] { return !daemon.service.followers.empty(); }));
      daemon.on_loop([&] {
        work();
        return 0;
      });
    });
  }

  // Once a follower is there: kill -9 of nsad (connections break, the socket stays, the next one
  // binds anew), `meanwhile` before the next one, and the run's end once there is a follower again.
  template <class Work> std::thread kill_and_end(Work meanwhile, const RunId& id = "kaaaa") {
    return std::thread([this, meanwhile, id] {
      when_followed([this, meanwhile] {
        daemon.server.reset();
        meanwhile();
        auto again = net::HttpServer::listen_unix(daemon.loop, daemon.socket, 0600,
                                                  daemon.routes->handler());
        ASSERT_TRUE(again);
        daemon.server = std::move(*again);
      }).join();
      when_followed([this, id] { daemon.service.emit_state(id, "completed", "end"); }).join();
    });
  }

  FakeDaemon daemon;
};

TEST_F(Commands, SubmitSendsTheFileAndItsFolder) {
  const auto path = run_file("schema = 1\n");
  const Outcome done = run({"submit", path, "--set", "train.steps=5", "--name", "n"});
  EXPECT_EQ(done.exit, 0) << done.err;
  EXPECT_EQ(done.out, "submitted kabcd  n\n");
  EXPECT_NE(done.err.find("next: nsactl status kabcd"), std::string::npos);
  const auto& request = daemon.service.submitted.at(0);
  EXPECT_EQ(request.toml, "schema = 1\n");
  EXPECT_EQ(request.folder, daemon.folder);
  EXPECT_EQ(request.overrides, std::vector<std::string>{"train.steps=5"});
  EXPECT_EQ(request.name, "n");
  EXPECT_TRUE(request.environment.empty());
}

TEST_F(Commands, ADryRunIsJudgedByTheDaemonAndStartsNothing) {
  const std::string sound = "schema = 1\n[data]\npath = \"/d\"\n[train]\nsteps = 3\n";
  const Outcome done = run({"submit", "-", "--dry-run", "--name", "n"}, sound);
  EXPECT_EQ(done.exit, 0) << done.err;
  EXPECT_TRUE(daemon.service.submitted.at(0).dry_run);
  EXPECT_EQ(daemon.service.submitted.at(0).name, "n");
  EXPECT_TRUE(daemon.service.runs.empty());
  EXPECT_NE(done.out.find("\ntokens     "), std::string::npos) << done.out; // the plan
  EXPECT_NE(done.out.find("nsad would take n: 2 ranks on cpu; nothing was started\n"),
            std::string::npos)
      << done.out;
  const Outcome refused = run({"submit", "-", "--dry-run"}, sound + "broken = true\n");
  EXPECT_EQ(refused.exit, 2);
  EXPECT_EQ(refused.out, "");
}

TEST_F(Commands, OnlyNamedVariablesLeaveTheShell) {
  ::setenv("JOB_PASSED", "yes", 1);
  const Outcome done = run(
      {"submit", "-"}, "schema = 1\n[run]\npass_environment = [\"JOB_PASSED\", \"JOB_NOT_SET\"]\n");
  EXPECT_EQ(daemon.service.submitted.at(0).environment,
            (std::map<std::string, std::string>{{"JOB_PASSED", "yes"}}));
  EXPECT_NE(done.err.find("warning: run.pass_environment names JOB_NOT_SET"), std::string::npos)
      << done.err;
}

TEST_F(Commands, AnUnknownVariableIsRefusedBeforeAnythingStarts) {
  ::setenv("NSA_SOKCET", "/x", 1);
  for (const char* verb : {"submit", "plan"}) {
    const Outcome done = run({verb, test::source_folder() + "/configs/quickstart.toml"});
    EXPECT_EQ(done.exit, 2) << verb;
    EXPECT_NE(done.err.find("did you mean NSA_SOCKET?"), std::string::npos) << done.err;
    EXPECT_NE(done.err.find("the environment sets NSA_SOKCET, which nothing reads"),
              std::string::npos)
        << done.err;
  }
  EXPECT_TRUE(daemon.service.submitted.empty());
  ::unsetenv("NSA_SOKCET");
}

TEST_F(Commands, ARefusedFileShowsEveryMistake) {
  const Outcome done = run({"submit", run_file("broken = true\n")});
  EXPECT_EQ(done.exit, 2);
  EXPECT_EQ(done.out, "");
  EXPECT_EQ(done.err, "error: train.steps: is no number\n"
                      "  --> run.toml:14:9\n"
                      "  hint: write steps = 60\n"
                      "error: modle.layers: unknown key\n"
                      "  --> --set\n"
                      "  hint: did you mean model.layers?\n"
                      "error: run.toml has 2 mistakes\n");
}

// What only nsad can find is drawn as what nsactl finds itself.
TEST_F(Commands, ARefusalIsDrawnUnderTheLineOfTheFile) {
  const auto path = run_file("schema = 1\n# broken\n[data]\npath = \"/none\"\n");
  daemon.on_loop([&] {
    daemon.service.problems_next = {
        {path, 4, 8, "data.path", "there is no data set in /none", "nsactl data prepare"}};
    return 0;
  });
  EXPECT_EQ(run({"submit", path}).err, "error: data.path: there is no data set in /none\n"
                                       "  --> " +
                                           path +
                                           ":4:8\n"
                                           "    |\n"
                                           "  4 | path = \"/none\"\n"
                                           "    |        ^\n"
                                           "  hint: nsactl data prepare\n"
                                           "error: run.toml has 2 mistakes\n");
}

TEST_F(Commands, AQueuedRunSaysWhyAndAnInjectionIsLoud) {
  daemon.service.queue_next = true;
  spec::RunSpec spec;
  spec.inject.kind = spec::FaultKind::kSpin;
  daemon.service.warnings_next = spec::warnings(spec);
  const Outcome done = run({"submit", "-"}, "schema = 1\n[inject]\nkind = \"spin\"\n");
  EXPECT_NE(done.out.find("queued: waits for 2 CPU slots, 1 is free"), std::string::npos);
  EXPECT_NE(done.err.find("warning: INJECT: this run is given a fault on purpose: spin\n"),
            std::string::npos)
      << done.err;
}

TEST_F(Commands, AnInjectionIsSaidOncePerCommand) {
  spec::RunSpec spec;
  spec.inject.kind = spec::FaultKind::kSpin;
  daemon.service.warnings_next = spec::warnings(spec);
  daemon.service.inject_next = "spin on rank 1";
  const auto times_said = [](const Outcome& done) {
    const std::string text = done.out + done.err;
    int count = 0;
    for (size_t at = 0; (at = text.find("INJECT", at)) != std::string::npos; ++at)
      ++count;
    return count;
  };
  auto script = when_followed([this] { daemon.service.emit_state("kabcd", "completed", "end"); });
  const Outcome submitted =
      run({"submit", "-", "--follow"}, "schema = 1\n[inject]\nkind = \"spin\"\n");
  script.join();
  EXPECT_EQ(times_said(submitted), 1) << submitted.out << submitted.err;
  const Outcome followed = run({"follow", "kabcd"});
  EXPECT_EQ(times_said(followed), 1) << followed.out;
}

TEST_F(Commands, TagsAndNoteGoWithTheRunAndFindIt) {
  run({"submit", "-", "--tag", "short", "--tag", "b c", "--note", "a \"quoted\" word"},
      "schema = 1\n[run]\ntags = [\"of the file\"]\n");
  const auto& overrides = daemon.service.submitted.at(0).overrides;
  const auto parsed = spec::parse_run_file("schema = 1\n", "run.toml", overrides);
  EXPECT_EQ(parsed.spec.run.tags, (std::vector<std::string>{"of the file", "short", "b c"}));
  EXPECT_EQ(parsed.spec.run.note, "a \"quoted\" word");
  add_run("kaaaa", "running");
  add_run("kbbbb", "running");
  daemon.on_loop([this] {
    auto& one = daemon.service.runs.at("kaaaa").summary;
    one.tags = {"short", "wide"};
    one.note = "try again";
    daemon.service.runs.at("kbbbb").summary.tags = {"wide"};
    return 0;
  });
  const auto ids = [&](std::vector<std::string> words) {
    words.insert(words.end(), {"-o", "json"});
    std::string list;
    const json answer = json::parse(run(words).out);
    for (const json& item : answer["items"])
      list += item["id"].get<std::string>() + " ";
    return list;
  };
  EXPECT_EQ(ids({"ls", "--tag", "wide"}), "kaaaa kbbbb ");
  EXPECT_EQ(ids({"ls", "--tag", "wide", "--tag", "short"}), "kaaaa ");
  EXPECT_EQ(run({"ls", "--tag", "none"}).err, "no such runs\n");
  const std::string wide = run({"ls", "-o", "wide", "--tag", "short"}).out;
  EXPECT_NE(wide.find("short,wide"), std::string::npos) << wide;
  EXPECT_NE(wide.find("try again"), std::string::npos) << wide;
  EXPECT_NE(run({"status", "kaaaa"}).out.find(" tags     short, wide\n note     try again\n"),
            std::string::npos);
  EXPECT_EQ(json::parse(run({"status", "kaaaa", "-o", "json"}).out)["summary"]["note"],
            "try again");
}

TEST_F(Commands, SubmitAsJsonIsOneObject) {
  const Outcome done = run({"submit", run_file("schema = 1\n"), "-o", "json"});
  EXPECT_EQ(json::parse(done.out)["id"], "kabcd");
  EXPECT_EQ(done.err, "");
}

TEST_F(Commands, MissingFilesAndRuns) {
  EXPECT_EQ(run({"submit", "/nowhere/run.toml"}).exit, 3);
  const Outcome done = run({"status", "zzzzz"});
  EXPECT_EQ(done.exit, 3);
  EXPECT_EQ(done.err, "error: no run 'zzzzz'\n  hint: nsactl ls -a\n");
}

TEST_F(Commands, NoDaemonIsItsOwnExitCode) {
  std::ostringstream out, err;
  std::istringstream in;
  EXPECT_EQ(run_command(all_verbs(), {"--socket", daemon.folder + "/none", "ls"}, {out, err, in}),
            6);
  EXPECT_NE(err.str().find("hint: "), std::string::npos);
}

TEST_F(Commands, ListsInEveryFormat) {
  EXPECT_EQ(run({"ls"}).err, "no runs; start one: nsactl submit run.toml\n");
  EXPECT_EQ(run({"ls", "-o", "json"}).out, "{\"items\":[],\"left_out\":0}\n");
  add_run("kaaaa", "running");
  add_run("kbbbb", "failed");
  EXPECT_EQ(run({"ls"}).out.find("kbbbb"), std::string::npos);
  EXPECT_NE(run({"ls", "-a"}).out.find("kbbbb"), std::string::npos);
  const Outcome failed = run({"ls", "-a", "-s", "failed", "-o", "json"});
  EXPECT_EQ(json::parse(failed.out)["items"].size(), 1u);
  EXPECT_NE(run({"ls", "-o", "wide"}).out.find("RANKS"), std::string::npos);
  EXPECT_EQ(run({"ls"}).out.find('\033'), std::string::npos) << "colour without a terminal";
  EXPECT_NE(run({"ls", "--color", "always"}).out.find("\033[32m"), std::string::npos);
}

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
    detail.attempts = {{1, "ended", "an earlier one", "hang", 0, 5, 1, 2, {}},
                       {2, "ended", "rank 1 ended with exit 3", "crash", 5, 9, 3, 4, {}}};
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
  // A hang's evidence is worth more than a log, and what a rank said itself more than its last
  // line.
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
  EXPECT_NE(done.out.find("nsad went away"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("! said meanwhile\n"), std::string::npos) << done.out;
  EXPECT_NE(done.out.find("nsad is back"), std::string::npos);
}

TEST_F(Commands, FollowedLogsAndEventsOutliveARestartOfTheDaemon) {
  const std::string log = daemon.folder + "/r0.log";
  const auto write = [&](int from, int to) {
    std::ofstream file(log, std::ios::app);
    for (int i = from; i < to; ++i) // one time for all
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

TEST_F(Commands, LsFiltersBeforeItCutsAndSaysWhatItCut) {
  for (int i = 0; i < 30; ++i)
    add_run("kaa" + std::to_string(10 + i), i % 2 == 0 ? "failed" : "completed");
  add_run("kzzzz", "running");
  const auto count = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n') - 1; // the heading
  };
  const Outcome plain = run({"ls"});
  EXPECT_NE(plain.err.find("30 more that ended earlier: add --all"), std::string::npos)
      << plain.err;
  const Outcome failed = run({"ls", "--state", "failed"});
  EXPECT_EQ(count(failed.out), 10);
  EXPECT_NE(failed.err.find("5 more that ended earlier: add --all"), std::string::npos)
      << failed.err;
  const Outcome all = run({"ls", "--state", "failed", "--all"});
  EXPECT_EQ(count(all.out), 15);
  EXPECT_EQ(all.err, "");
  const json document = json::parse(run({"ls", "--state", "failed", "-o", "json"}).out);
  EXPECT_EQ(document["items"].size(), 10u);
  EXPECT_EQ(document["left_out"], 5);
}

TEST_F(Commands, MutationsSayWhatComesNext) {
  add_run("kaaaa", "running");
  const Outcome stopped = run({"stop", "kaaaa"});
  EXPECT_EQ(stopped.out, "kaaaa  stopping after a checkpoint (stopping)\n");
  EXPECT_EQ(stopped.err, "next: nsactl wait kaaaa | nsactl cancel kaaaa | nsactl resume kaaaa\n");
  EXPECT_EQ(run({"cancel", "kaaaa", "-q"}).err, "");
  EXPECT_EQ(run({"ckpt", "now", "kaaaa"}).exit, 0);
  EXPECT_EQ(daemon.service.checkpoints_asked, 1);
  EXPECT_EQ(run({"resume", "kaaaa", "--set", "train.steps=9"}).exit, 0);
  EXPECT_EQ(daemon.service.resumed.at(0).overrides, std::vector<std::string>{"train.steps=9"});
  EXPECT_EQ(run({"rm", "-y", "kaaaa"}).exit, 5) << "a live run is not removed";
}

TEST_F(Commands, AResumeWithAWarningIsAskedAboutOnATerminal) {
  add_run("kaaaa", "stopped");
  const std::string warning = "the learning rate jumps; to keep it: nsactl resume kaaaa --set ...";
  daemon.on_loop([&] {
    daemon.service.warnings_next = {warning};
    return 0;
  });
  const Outcome no = run_on_terminal({"resume", "kaaaa"}, "n\n");
  EXPECT_EQ(no.exit, 1);
  EXPECT_NE(no.err.find("warning: " + warning), std::string::npos) << no.err;
  EXPECT_NE(no.err.find("nothing was resumed"), std::string::npos) << no.err;
  ASSERT_EQ(daemon.service.resumed.size(), 1u);
  EXPECT_TRUE(daemon.service.resumed[0].dry_run);
  EXPECT_EQ(run_on_terminal({"resume", "kaaaa"}, "y\n").exit, 0);
  EXPECT_FALSE(daemon.service.resumed.back().dry_run);
  EXPECT_EQ(run_on_terminal({"resume", "kaaaa", "--yes", "--from-start"}, "").exit, 0);
  EXPECT_TRUE(daemon.service.resumed.back().from_start);
  const Outcome script = run({"resume", "kaaaa"});
  EXPECT_EQ(script.exit, 0) << "nobody can be asked: it is said";
  EXPECT_NE(script.err.find("warning: " + warning), std::string::npos) << script.err;
}

TEST_F(Commands, OneOfSeveralRunsThatFailsLeavesTheOthersTheirTurn) {
  add_run("kaaaa", "running");
  add_run("kbbbb", "running");
  const Outcome stopped = run({"stop", "kaaaa", "kzzzz", "kbbbb"});
  EXPECT_EQ(stopped.exit, 3);
  EXPECT_NE(stopped.out.find("kaaaa  "), std::string::npos) << stopped.out;
  EXPECT_NE(stopped.out.find("kbbbb  "), std::string::npos) << stopped.out;
  EXPECT_NE(stopped.err.find("kzzzz"), std::string::npos) << stopped.err;
  EXPECT_EQ(run({"cancel", "kyyyy", "kzzzz"}).exit, 3);
  const Outcome kept = run({"rm", "-y", "kzzzz", "kaaaa", "kyyyy"});
  EXPECT_EQ(kept.exit, 5) << "the worst: " << kept.err;
  for (const char* words : {"kzzzz", "kyyyy", "run kaaaa is ", "nothing was removed\n"})
    EXPECT_NE(kept.err.find(words), std::string::npos) << kept.err;
}

// A stop may take minutes when somebody has to be waited for: that is said, and the way out.
TEST_F(Commands, AStopThatHasToWaitSaysForWhatAndUntilWhen) {
  add_run("kaaaa", "running");
  daemon.on_loop([this] {
    auto& summary = daemon.service.runs.at("kaaaa").summary;
    summary.waits_until = (WallTime::now() + std::chrono::seconds(330)).nanoseconds;
    summary.hangs = 1;
    summary.reason = "stop requested by ann; rank 1 (deadlocked in forward at step 60) is only "
                     "observed and may not answer";
    return 0;
  });
  const Outcome stopped = run({"stop", "kaaaa"});
  EXPECT_NE(stopped.out.find(", at the latest at "), std::string::npos) << stopped.out;
  EXPECT_NE(stopped.err.find("rank 1 (deadlocked in forward at step 60) is only observed"),
            std::string::npos);
  EXPECT_NE(stopped.err.find("`nsactl cancel kaaaa` ends it now"), std::string::npos);
  EXPECT_NE(run({"status", "kaaaa"}).out.find("; at the latest at "), std::string::npos);
}

TEST_F(Commands, StopAndCancelWaitForTheEnd) {
  add_run("kaaaa", "running");
  auto script = when_followed([this] { daemon.service.emit_state("kaaaa", "stopped", "end"); });
  const Outcome stopped = run({"stop", "kaaaa", "--wait"});
  script.join();
  EXPECT_EQ(stopped.exit, 0) << stopped.err;
  EXPECT_NE(stopped.out.find("kaaaa  stopped\n"), std::string::npos) << stopped.out;
  add_run("kbbbb", "running");
  script = when_followed([this] { daemon.service.emit_state("kbbbb", "failed", "end"); });
  EXPECT_EQ(run({"stop", "kbbbb", "--wait"}).exit, 1) << "it failed instead";
  script.join();
  add_run("kcccc", "running");
  script = when_followed([this] { daemon.service.emit_state("kcccc", "cancelled", "end"); });
  EXPECT_EQ(run({"cancel", "kcccc", "--wait"}).exit, 0);
  script.join();
}

TEST_F(Commands, RmAndPruneAskTheSameWay) {
  add_run("kaaaa", "running");
  add_run("kbbbb", "failed");
  add_run("kcccc", "completed");
  for (const auto& words :
       {std::vector<std::string>{"rm", "kbbbb", "kcccc"}, std::vector<std::string>{"prune"}}) {
    const Outcome refused = run(words);
    EXPECT_EQ(refused.exit, 2) << "without a terminal nobody can be asked";
    EXPECT_NE(refused.err.find("would remove 2 runs"), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("--yes"), std::string::npos) << refused.err;
    auto dry_words = words;
    dry_words.push_back("--dry-run");
    const Outcome dry = run(dry_words);
    EXPECT_EQ(dry.exit, 0);
    EXPECT_NE(dry.err.find("would remove 2 runs"), std::string::npos);
    EXPECT_NE(dry.out.find("kbbbb"), std::string::npos);
    const Outcome no = run_on_terminal(words, "n\n");
    EXPECT_EQ(no.exit, 1);
    EXPECT_NE(no.err.find("remove 2 runs with logs, evidence and checkpoints?"), std::string::npos)
        << no.err;
    EXPECT_EQ(daemon.service.runs.size(), 3u);
  }
  EXPECT_EQ(run({"rm", "-y", "kbbbb", "kaaaa"}).exit, 5);
  EXPECT_EQ(daemon.service.runs.size(), 3u) << "all or none";
  const Outcome yes = run_on_terminal({"rm", "kbbbb", "kbbbb"}, "y\n");
  EXPECT_EQ(yes.exit, 0) << yes.err;
  EXPECT_NE(yes.out.find("kbbbb  removed\n"), std::string::npos) << yes.out;
  EXPECT_EQ(daemon.service.runs.size(), 2u);
  add_run("kbbbb", "failed");
  EXPECT_EQ(run({"prune", "--keep", "1", "--yes"}).exit, 0);
  EXPECT_EQ(daemon.service.runs.size(), 2u);
  EXPECT_EQ(run({"prune", "--yes", "-q"}).exit, 0);
  EXPECT_EQ(daemon.service.runs.size(), 1u) << "the live one stays";
}

TEST_F(Commands, DeletedCheckpointsAreShownOnRequest) {
  add_run("kaaaa", "running");
  daemon.on_loop([this] {
    wire::CheckpointView kept, deleted;
    kept.step = 20;
    kept.state = "unverified";
    deleted.step = 10;
    deleted.state = "deleted";
    daemon.service.runs.at("kaaaa").checkpoints = {kept, deleted};
    return 0;
  });
  const auto lists = [&](std::vector<std::string> words, const char* what) {
    return run(std::move(words)).out.find(what) != std::string::npos;
  };
  EXPECT_FALSE(lists({"ckpt", "ls", "kaaaa"}, "step 10"));
  EXPECT_TRUE(lists({"ckpt", "ls", "kaaaa"}, "step 20"));
  EXPECT_TRUE(lists({"ckpt", "ls", "kaaaa", "--all"}, "step 10"));
  EXPECT_EQ(json::parse(run({"ckpt", "ls", "kaaaa", "-o", "json"}).out)["items"].size(), 1u);
  EXPECT_FALSE(lists({"status", "kaaaa"}, "step 10"));
}

TEST_F(Commands, DaemonStatusAndVersion) {
  EXPECT_EQ(json::parse(run({"daemon", "status", "-o", "json"}).out)["pid"], ::getpid());
  EXPECT_NE(run({"daemon", "status"}).out.find("socket"), std::string::npos);
  EXPECT_EQ(json::parse(run({"version", "-o", "json"}).out)["nsad"]["api"], wire::kApiVersion);
}

TEST_F(Commands, AnOlderDaemonIsExplained) {
  daemon.on_loop([this] {
    daemon.server.reset();
    auto made = net::HttpServer::listen_unix(
        daemon.loop, daemon.socket, 0600, [](const net::Request& request) {
          EXPECT_EQ(request.header.at("nsa-api"), std::to_string(wire::kApiVersion));
          net::Response response;
          response.status = 426; // as routes.cpp answers a newer nsactl
          response.body = R"({"code":"unsupported","what":"this nsactl speaks API version 1, )"
                          R"(the running nsad (0.0.1) version 0","next":"nsactl daemon stop"})";
          return response;
        });
    daemon.server = std::move(*made);
    return 0;
  });
  const Outcome done = run({"ls"});
  EXPECT_EQ(done.exit, 6);
  EXPECT_EQ(done.err,
            "error: this nsactl speaks API version 1, the running nsad (0.0.1) version 0\n"
            "  hint: nsactl daemon stop\n");
}

} // namespace
} // namespace nsa::cli
