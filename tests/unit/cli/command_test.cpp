// Verbs about existing runs, and about nsad.
#include "tests/unit/cli/commands_fixture.h"

#include <algorithm>
#include <gmock/gmock.h>

namespace nsa::cli {
namespace {

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

TEST_F(Commands, LsFiltersBeforeItCutsAndSaysWhatItCut) {
  for (int i = 0; i < 30; ++i)
    add_run("kaa" + std::to_string(10 + i), i % 2 == 0 ? "failed" : "completed");
  add_run("kzzzz", "running");
  const auto count = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n') - 1; // without the heading
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

// A stop may take minutes if it must wait. nsactl says for what it waits, and how to avoid the
// wait.
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
  for (const auto& words : {std::vector<std::string>{"rm", "kbbbb", "kcccc"},
                            std::vector<std::string>{"prune", "--keep", "0"}}) {
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
  EXPECT_EQ(run({"prune", "--keep", "0", "--yes", "-q"}).exit, 0);
  EXPECT_EQ(daemon.service.runs.size(), 1u) << "the live one stays";
}

TEST_F(Commands, PruneWantsALimit) {
  add_run("kbbbb", "failed");
  for (const auto& words :
       {std::vector<std::string>{"prune"}, {"prune", "--dry-run"}, {"prune", "--yes"}}) {
    const Outcome refused = run(words);
    EXPECT_EQ(refused.exit, 2);
    EXPECT_NE(refused.err.find("prune needs --older-than TIME, --keep N, or both"),
              std::string::npos)
        << refused.err;
  }
  EXPECT_EQ(daemon.service.runs.size(), 1u) << "--yes gives no limit";
}

TEST_F(Commands, PruneKeepsTheNewestOfAllEndedRuns) {
  for (const std::string id : {"kaaaa", "kbbbb", "kcccc"})
    add_run(id, "completed");
  daemon.on_loop([this] { // kcccc ended now, the other two in 1970, kbbbb later than kaaaa
    daemon.service.runs.at("kbbbb").summary.ended_at = 2;
    daemon.service.runs.at("kcccc").summary.ended_at = WallTime::now().nanoseconds;
    return 0;
  });
  const auto would_go = [this](std::vector<std::string> limits) {
    limits.insert(limits.begin(), {"prune", "--dry-run", "-o", "json"});
    std::vector<std::string> ids;
    const json answer = json::parse(run(limits).out);
    for (const json& item : answer.at("items"))
      ids.push_back(item.at("id"));
    return ids;
  };
  using testing::ElementsAre;
  EXPECT_THAT(would_go({"--keep", "0"}), ElementsAre("kcccc", "kbbbb", "kaaaa"));
  EXPECT_THAT(would_go({"--keep", "2"}), ElementsAre("kaaaa"));
  EXPECT_THAT(would_go({"--older-than", "1d"}), ElementsAre("kbbbb", "kaaaa"));
  EXPECT_THAT(would_go({"--older-than", "1d", "--keep", "1"}), ElementsAre("kbbbb", "kaaaa"))
      << "the one that is kept is younger";
  EXPECT_THAT(would_go({"--older-than", "1d", "--keep", "2"}), ElementsAre("kaaaa"));
}

TEST_F(Commands, DeletedCheckpointsAreShownOnRequest) {
  add_run("kaaaa", "running");
  daemon.on_loop([this] {
    wire::CheckpointView kept, deleted;
    kept.step = 20;
    kept.state = wire::CheckpointState::kUnverified;
    deleted.step = 10;
    deleted.state = wire::CheckpointState::kDeleted;
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
          response.status = 426; // routes.cpp answers a newer nsactl in this way
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
