// Verbs from words to exit code, over a real socket to a service in memory.
#include "cli/command.h"
#include "cli/verbs.h"
#include "common/base/file.h"
#include "tests/support/fake_service.h"

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

TEST_F(Commands, OnlyNamedVariablesLeaveTheShell) {
  ::setenv("PASSED_TO_RANKS", "yes", 1);
  const Outcome done =
      run({"submit", "-"},
          "schema = 1\n[run]\npass_environment = [\"PASSED_TO_RANKS\", \"NOT_SET_ANYWHERE\"]\n");
  EXPECT_EQ(daemon.service.submitted.at(0).environment,
            (std::map<std::string, std::string>{{"PASSED_TO_RANKS", "yes"}}));
  EXPECT_NE(done.err.find("warning: run.pass_environment names NOT_SET_ANYWHERE"),
            std::string::npos)
      << done.err;
}

TEST_F(Commands, AnUnknownVariableIsRefusedBeforeAnythingStarts) {
  ::setenv("NSA_SOKCET", "/x", 1);
  for (const char* verb : {"submit", "plan"}) {
    const Outcome done = run({verb, NSA_SOURCE_DIR "/configs/quickstart.toml"});
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
  EXPECT_EQ(done.err, "  --> run.toml:14:9  train.steps: is no number\n"
                      "      hint: write steps = 60\n"
                      "  --> --set  modle.layers: unknown key\n"
                      "      hint: did you mean model.layers?\n"
                      "error: run.toml has 2 mistakes\n");
}

TEST_F(Commands, AQueuedRunSaysWhyAndAnInjectionIsLoud) {
  daemon.service.queue_next = true;
  daemon.service.warnings_next = {"the programs have changed"};
  const Outcome done = run({"submit", "-"}, "schema = 1\n[inject]\nkind = \"spin\"\n");
  EXPECT_NE(done.out.find("queued: waits for 2 CPU slots, 1 is free"), std::string::npos);
  EXPECT_NE(done.err.find("INJECT: this run will make a fault on purpose: spin\n"),
            std::string::npos);
  EXPECT_NE(done.err.find("warning: the programs have changed\n"), std::string::npos);
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
  EXPECT_EQ(run({"ls", "-o", "json"}).out, "{\"items\":[]}\n");
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
  EXPECT_EQ(run({"logs", "kaaaa", "--since", "1h"}).out, "");
  EXPECT_EQ(run({"logs", "kaaaa", "--rank", "x"}).exit, 2);
  EXPECT_EQ(json::parse(run({"events", "kaaaa", "-o", "json"}).out)["items"].size(), 2500u);
  EXPECT_NE(run({"events"}).out.find("kaaaa "), std::string::npos);
}

TEST_F(Commands, MutationsSayWhatComesNext) {
  add_run("kaaaa", "running");
  const Outcome stopped = run({"stop", "kaaaa"});
  EXPECT_EQ(stopped.out, "kaaaa  stopping after a checkpoint (stopping)\n");
  EXPECT_EQ(stopped.err, "next: nsactl wait kaaaa | nsactl resume kaaaa\n");
  EXPECT_EQ(run({"cancel", "kaaaa", "-q"}).err, "");
  EXPECT_EQ(run({"ckpt", "now", "kaaaa"}).exit, 0);
  EXPECT_EQ(daemon.service.checkpoints_asked, 1);
  EXPECT_EQ(run({"resume", "kaaaa", "--set", "train.steps=9"}).exit, 0);
  EXPECT_EQ(daemon.service.resume_overrides, std::vector<std::string>{"train.steps=9"});
  EXPECT_EQ(run({"rm", "kaaaa"}).exit, 5) << "a live run is not removed";
}

TEST_F(Commands, PruneOnlySaysUnlessTold) {
  add_run("kaaaa", "running");
  add_run("kbbbb", "failed");
  add_run("kcccc", "completed");
  const Outcome dry = run({"prune"});
  EXPECT_NE(dry.err.find("would remove 2 runs"), std::string::npos);
  EXPECT_EQ(daemon.service.runs.size(), 3u);
  EXPECT_EQ(run({"prune", "--keep", "1", "--yes"}).exit, 0);
  EXPECT_EQ(daemon.service.runs.size(), 2u);
  EXPECT_EQ(run({"prune", "--yes", "-q"}).exit, 0);
  EXPECT_EQ(daemon.service.runs.size(), 1u) << "the live one stays";
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
