// nsactl starts nsad when it needs it. Scripts play nsad: one fails, and one listens.
#include "cli/client/daemon.h"
#include "cli/client/start.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace nsa::client {
namespace {

class Start : public ::testing::Test {
protected:
  void SetUp() override {
    char name[] = "/tmp/nsa-start-XXXXXX";
    folder_ = ::mkdtemp(name);
    ::setenv("XDG_STATE_HOME", (folder_ + "/state").c_str(), 1);
    ::setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
    ::unsetenv("NSA_SOCKET");
    std::filesystem::create_directories(folder_ + "/nsa");
    paths_ = net::user_paths().value();
  }
  void TearDown() override {
    const std::string pid = tail_of_file(folder_ + "/pid", 1);
    if (!pid.empty()) ::kill(std::stoi(pid), SIGKILL); // the stand-in that this test started
    std::filesystem::remove_all(folder_);
  }
  void stand_in(const std::string& script) {
    std::ofstream(folder_ + "/nsad") << script;
    ::chmod((folder_ + "/nsad").c_str(), 0755);
  }
  // Listens instead of nsad. `answer` is what it does with each connection `c`.
  void listening_stand_in(const std::string& answer) {
    stand_in("#!/usr/bin/env python3\n"
             "import os, socket\n"
             "open('" +
             folder_ +
             "/pid', 'w').write(str(os.getpid()))\n"
             "s = socket.socket(socket.AF_UNIX)\n"
             "s.bind('" +
             paths_.socket +
             "')\n"
             "s.listen()\n"
             "print('listening', flush=True)\n"
             "asked = 0\n"
             "while True:\n"
             "    c, _ = s.accept()\n" +
             answer + "    c.close()\n");
  }
  // Answers with facts about the stand-in's process that the tests need.
  void telling_stand_in() {
    listening_stand_in("    if c.recv(4096):\n"
                       "        sid = str(os.getsid(0) == os.getpid()).lower()\n"
                       "        fds = len(os.listdir('/proc/self/fd'))\n"
                       "        body = '{\"leader\": %s, \"fds\": %d}' % (sid, fds)\n"
                       "        c.sendall(('HTTP/1.1 200 OK\\r\\nContent-Length: "
                       "%d\\r\\n\\r\\n%s' % (len(body), body)).encode())\n");
  }

  std::string folder_;
  net::NodePaths paths_;
};

TEST_F(Start, WaitsUntilItListensAndDetachesIt) {
  telling_stand_in();
  auto daemon = Daemon::connect({"", folder_, true});
  ASSERT_TRUE(daemon) << daemon.error().what;
  EXPECT_TRUE(daemon->was_started());
  const auto answer = daemon->get("/v1/daemon");
  ASSERT_TRUE(answer) << answer.error().what;
  EXPECT_TRUE(answer->at("leader")) << "it must outlive the terminal";
  EXPECT_LE(answer->at("fds").get<int>(), 7) << "it must not hold its starter's descriptors";
  EXPECT_EQ(tail_of_file(paths_.log, 1), "listening\n");
  struct stat info{};
  ASSERT_EQ(::stat(paths_.state.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  const auto second = Daemon::connect({"", folder_, true});
  ASSERT_TRUE(second);
  EXPECT_FALSE(second->was_started());
}

TEST_F(Start, AFailureComesWithTheEndOfTheLog) {
  stand_in("#!/bin/sh\necho first; echo the ledger is of a newer version >&2; exit 78\n");
  const auto daemon = Daemon::connect({"", folder_, true});
  ASSERT_FALSE(daemon);
  EXPECT_EQ(daemon.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(daemon.error().what.find("ended with exit code 78"), std::string::npos);
  EXPECT_NE(daemon.error().what.find("the ledger is of a newer version"), std::string::npos);
  EXPECT_NE(daemon.error().next.find(paths_.log), std::string::npos);
}

TEST_F(Start, OneThatTakesItsTimeIsWaitedForAndItsLogIsNamed) {
  telling_stand_in();
  // It listens only after nsactl has reported that the start is slow.
  std::ifstream listening(folder_ + "/nsad");
  std::string script{std::istreambuf_iterator<char>(listening), {}};
  script.insert(script.find("s = socket"), "import time\n"
                                           "while not os.path.exists('" +
                                               folder_ + "/told'): time.sleep(0.01)\n");
  stand_in(script);
  std::vector<std::string> said;
  const auto notice = [&](const std::string& text) {
    said.push_back(text);
    std::ofstream(folder_ + "/told") << "yes";
  };
  const StartLimits limits{std::chrono::milliseconds(100), std::chrono::seconds(60)};
  const Status started = start_daemon(folder_, paths_, notice, limits);
  ASSERT_TRUE(started) << started.error().what;
  ASSERT_EQ(said.size(), 1u);
  EXPECT_NE(said[0].find(paths_.log), std::string::npos) << said[0];
}

TEST_F(Start, OneThatNeverListensIsGivenUp) {
  stand_in("#!/bin/sh\necho $$ > " + folder_ + "/pid; echo first; exec sleep 60\n");
  const StartLimits limits{std::chrono::milliseconds(50), std::chrono::milliseconds(300)};
  const Status started = start_daemon(folder_, paths_, {}, limits);
  ASSERT_FALSE(started);
  EXPECT_EQ(started.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(started.error().what.find("did not listen on " + paths_.socket), std::string::npos);
  EXPECT_NE(started.error().next.find(paths_.log), std::string::npos);
  for (int i = 0; i < 3000 && tail_of_file(folder_ + "/pid", 1).empty(); ++i)
    ::usleep(10'000); // the destructor of the test needs it to kill the process
}

TEST_F(Start, IsNotDoneWhereItWasNotWanted) {
  telling_stand_in();
  EXPECT_FALSE(Daemon::connect({"", folder_, false}));
  EXPECT_FALSE(Daemon::connect({folder_ + "/other.sock", folder_, true}));
  EXPECT_FALSE(std::filesystem::exists(paths_.state));
}

TEST_F(Start, AMissingProgramIsSaid) {
  const auto daemon = Daemon::connect({"", folder_ + "/nowhere", true});
  ASSERT_FALSE(daemon);
  EXPECT_NE(daemon.error().what.find("/nowhere/nsad"), std::string::npos);
}

TEST_F(Start, TailOfAFile) {
  const std::string path = folder_ + "/log";
  std::ofstream(path) << "a\nb\nc\n";
  EXPECT_EQ(tail_of_file(path, 2), "b\nc\n");
  EXPECT_EQ(tail_of_file(path, 3), "a\nb\nc\n");
  EXPECT_EQ(tail_of_file(path, 99), "a\nb\nc\n");
  EXPECT_EQ(tail_of_file(path, 0), "");
  std::ofstream(path) << "a\nb"; // no newline at its end
  EXPECT_EQ(tail_of_file(path, 1), "b");
  EXPECT_EQ(tail_of_file(folder_ + "/none", 5), "");
}

// A killed nsad accepts a connection and ends. A request that only reads goes to the next nsad. A
// request that changes something is not sent twice.
TEST_F(Start, AskingGoesOnWithTheNextNsad) {
  listening_stand_in(
      "    text = c.recv(1)\n" // the rest is not read, so the other end sees a reset
      "    asked += len(text)\n"
      "    if text and asked % 2 == 0:\n"
      "        c.recv(4096)\n"
      "        c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}')\n");
  auto daemon = Daemon::connect({"", folder_, true});
  ASSERT_TRUE(daemon) << daemon.error().what;
  const auto asked = daemon->get("/v1/runs"); // the first try is lost
  EXPECT_TRUE(asked) << asked.error().what;
  const auto told = daemon->post("/v1/runs");
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(daemon->post("/v1/runs")) << "the next one is answered: it was not sent twice";
}

} // namespace
} // namespace nsa::client
