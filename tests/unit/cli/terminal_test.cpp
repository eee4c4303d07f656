// nsactl itself on a pseudo-terminal.
#include "cli/completion.h"
#include "cli/render/table.h"
#include "cli/verbs.h"
#include "tests/support/fake_service.h"
#include "tests/support/pty_process.h"

#include "tests/support/test_paths.h"
#include <fstream>

namespace nsa::cli {
namespace {

using testing_support::FakeDaemon;
using testing_support::PtyProcess;

const std::string kProgram = test::program_folder() + "/nsactl";

class Terminal : public ::testing::Test {
protected:
  void SetUp() override {
    std::ofstream(daemon.folder + "/r0.log") << "2026-01-31T09:00:00Z stdout F zero\n";
    daemon.on_loop([this] {
      wire::RunDetail& detail = daemon.service.add_run("kaaaa", "running");
      detail.summary.step = 30;
      detail.summary.steps = 60;
      daemon.service.log_sources = {{1, 0, daemon.folder + "/r0.log", false}};
      return 0;
    });
  }
  std::vector<std::string> command(std::vector<std::string> words) {
    words.insert(words.begin(), {kProgram, "--socket", daemon.socket});
    return words;
  }
  bool followed() {
    return daemon.wait_until([this] { return !daemon.service.followers.empty(); });
  }

  FakeDaemon daemon;
  const std::vector<std::string> plain = {"NO_COLOR=", "CLICOLOR_FORCE=", "TERM=xterm",
                                          "LC_ALL=C.UTF-8"};
};

TEST_F(Terminal, TheFirstCtrlCDetachesAndTheRunGoesOn) {
  PtyProcess process(command({"follow", "kaaaa"}), plain);
  ASSERT_TRUE(process.wait_for("step 30/60")) << process.output();
  process.press("\x03");
  EXPECT_EQ(process.wait_exit(), 130);
  EXPECT_NE(process.output().find("detached; the run continues"), std::string::npos)
      << process.output();
  EXPECT_NE(process.output().find("next: nsactl follow kaaaa"), std::string::npos);
  EXPECT_EQ(daemon.on_loop([this] { return daemon.service.runs.at("kaaaa").summary.state; }),
            wire::RunState::kRunning);
}

TEST_F(Terminal, FollowRedrawsInColourAndEndsWithTheRun) {
  PtyProcess process(command({"follow", "kaaaa"}), plain, 100);
  ASSERT_TRUE(process.wait_for("\033[32m● running\033[0m  step 30/60 [██████████----------] 50%"))
      << process.output();
  ASSERT_TRUE(followed());
  daemon.on_loop([this] {
    daemon.service.emit_event({0, 1, "kaaaa", 1, 1, "hang_found", "error", "rank 1 hangs", {}});
    daemon.service.emit_state("kaaaa", "completed", "end");
    return 0;
  });
  EXPECT_EQ(process.wait_exit(), 0);
  EXPECT_NE(process.output().find("\r\033[K"), std::string::npos);
  EXPECT_NE(process.output().find("\033[31mrank 1 hangs\033[0m"), std::string::npos);
  EXPECT_NE(process.output().find("\033[32m✔ completed\033[0m"), std::string::npos);
}

TEST_F(Terminal, FollowFitsATerminalThatShrinks) {
  PtyProcess process(command({"follow", "kaaaa", "--color", "never"}), plain, 100);
  ASSERT_TRUE(process.wait_for("step 30/60")) << process.output();
  process.resize(30);
  ASSERT_TRUE(followed());
  const size_t before = process.output().size();
  daemon.on_loop([this] {
    daemon.service.emit_event({0, 1, "kaaaa", 1, 1, "hang_found", "error", "rank 1 hangs", {}});
    daemon.service.emit_state("kaaaa", "completed", "end");
    return 0;
  });
  EXPECT_EQ(process.wait_exit(), 0);
  const std::string after = process.output().substr(before);
  size_t drawn = 0;
  for (size_t at = 0; (at = after.find("\r\033[K", at)) != std::string::npos; ++drawn) {
    at += 4;
    const std::string line = after.substr(at, after.find_first_of("\r\n", at) - at);
    if (line.find(" step ") == std::string::npos) continue; // events are not shortened
    EXPECT_LT(render::display_width(line), 30) << line;
  }
  EXPECT_GE(drawn, 1u) << after;
}

TEST_F(Terminal, AFullDiskIsNoSuccess) {
  for (const char* words : {"logs kaaaa", "ls", "status kaaaa", "help"}) {
    PtyProcess process(
        {"/bin/sh", "-c", kProgram + " --socket " + daemon.socket + " " + words + " > /dev/full"},
        plain);
    EXPECT_EQ(process.wait_exit(), 1) << words;
    EXPECT_NE(process.output().find("cannot write the output"), std::string::npos)
        << words << process.output();
  }
}

TEST_F(Terminal, NoColorAndNarrowTerminals) {
  auto environment = plain;
  environment[0] = "NO_COLOR=1";
  environment[3] = "LC_ALL=C";
  PtyProcess process(command({"ls"}), environment, 30);
  EXPECT_EQ(process.wait_exit(), 0);
  EXPECT_EQ(process.output().find('\033'), std::string::npos) << process.output();
  for (const char c : process.output())
    EXPECT_LT(static_cast<unsigned char>(c), 128) << "not ASCII in the C locale";
  std::istringstream lines(process.output());
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(line.size(), 31u) << line; // including the carriage return
}

// Runs the script in a real bash. nsactl is in its PATH, and nsad listens on its socket.
TEST_F(Terminal, BashCompletesRunsAndKeys) {
  daemon.on_loop([this] {
    daemon.service.runs.at("kaaaa").summary.name = "night";
    daemon.service.add_run("kbbbb", "running").summary.name =
        "$(touch " + daemon.folder + "/owned)";
    return 0;
  });
  const std::string script = daemon.folder + "/complete.bash";
  std::ofstream(script)
      << completion_script(all_verbs(), "bash").value()
      << "complete_words() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _nsactl; "
         "echo \"got: ${COMPREPLY[*]}\"; }\n"
         "complete_words nsactl status k\n"
         "complete_words nsactl ckpt ls ni\n"
         "complete_words nsactl status \"\"\n"
         "complete_words nsactl submit run.toml --set train.st\n"
         "complete_words nsactl ls --state fai\n"
         "complete_words nsactl ls -o js --output wi\n";
  auto environment = plain;
  environment.push_back("NSA_SOCKET=" + daemon.socket);
  environment.push_back("PATH=" + test::program_folder() + ":/usr/bin:/bin");
  PtyProcess process({"/bin/bash", script}, environment);
  EXPECT_EQ(process.wait_exit(), 0);
  EXPECT_EQ(process.output(), "got: kaaaa kbbbb\r\n"
                              "got: night\r\n"
                              "got: @last kaaaa kbbbb night\r\n"
                              "got: train.steps=\r\n"
                              "got: failed\r\n"
                              "got: wide\r\n");
  EXPECT_NE(::access((daemon.folder + "/owned").c_str(), F_OK), 0) << "a name was run";
}

TEST_F(Terminal, AReaderThatLeavesEndsTheProgram) {
  daemon.on_loop([this] {
    for (int i = 0; i < 3000; ++i)
      daemon.service.emit_event({0, 1, "kaaaa", 1, -1, "x", "info", std::string(100, 'x'), {}});
    return 0;
  });
  PtyProcess process(
      {"/bin/sh", "-c", kProgram + " --socket " + daemon.socket + " events kaaaa | head -n 1"},
      plain);
  EXPECT_EQ(process.wait_exit(), 0);
}

} // namespace
} // namespace nsa::cli
