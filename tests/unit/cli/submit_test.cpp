// What `nsactl submit` sends, refuses and prints.
#include "tests/unit/cli/commands_fixture.h"

#include "common/spec/parse.h"
#include "tests/support/test_paths.h"

namespace nsa::cli {
namespace {

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
                      "error: run.toml has 2 mistakes\n"
                      "  hint: every key with its meaning and default: nsactl config show "
                      "--defaults\n");
}

// A mistake that only nsad can find is shown like one that nsactl finds itself.
TEST_F(Commands, ARefusalIsDrawnUnderTheLineOfTheFile) {
  const auto path = run_file("schema = 1\n# broken\n[data]\npath = \"/none\"\n");
  daemon.on_loop([&] {
    daemon.service.problems_next = {
        {path, 4, 8, "data.path", "there is no data set in /none", "nsactl data prepare"}};
    return 0;
  });
  EXPECT_EQ(run({"submit", path}).err,
            "error: data.path: there is no data set in /none\n"
            "  --> " +
                path +
                ":4:8\n"
                "    |\n"
                "  4 | path = \"/none\"\n"
                "    |        ^\n"
                "  hint: nsactl data prepare\n"
                "error: run.toml has 2 mistakes\n"
                "  hint: every key with its meaning and default: nsactl config show "
                "--defaults\n");
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

} // namespace
} // namespace nsa::cli
