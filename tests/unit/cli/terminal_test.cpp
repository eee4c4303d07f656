// The program itself on a pseudo-terminal.
#include "tests/support/fake_service.h"
#include "tests/support/pty_process.h"
#include "tests/support/test_paths.h"

namespace nsa::cli {
namespace {

using testing_support::FakeDaemon;
using testing_support::PtyProcess;

const std::string kProgram = test::program_folder() + "/nsactl";

class Terminal : public ::testing::Test {
protected:
  void SetUp() override {
    daemon.on_loop([this] {
      wire::RunDetail& detail = daemon.service.add_run("kaaaa", "running");
      detail.summary.step = 30;
      detail.summary.steps = 60;
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
  EXPECT_NE(process.output().find("detached; the run goes on"), std::string::npos)
      << process.output();
  EXPECT_NE(process.output().find("next: nsactl follow kaaaa"), std::string::npos);
  EXPECT_EQ(daemon.on_loop([this] { return daemon.service.runs.at("kaaaa").summary.state; }),
            "running");
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
    EXPECT_LE(line.size(), 31u) << line; // with the carriage return
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
