// Ranks of a benchmark program as real processes: shell scripts that end in every way in which a
// rank can end.
#include "bench/ranks/own_rank.h"
#include "bench/ranks/rank_processes.h"
#include "tests/support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace nsa::bench {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr Duration kLimit = 60s; // only a broken program takes so long

// Each rank writes its process id to $FOLDER/pid.<rank> and executes the script.
class RankProcesses : public testing::Test {
protected:
  RankProgram program(const std::string& script, int world = 2) const {
    const std::string begin = "set -u; R=$NSA_BENCH_RANK; echo $$ > $FOLDER/pid.$R.new; "
                              "mv $FOLDER/pid.$R.new $FOLDER/pid.$R; "
                              "wait_for() { while ! [ -e $1 ]; do sleep 0.01; done; }; ";
    return {.world = world,
            .arguments = {"/bin/sh", "-c", begin + script},
            .environment = {"PATH=/usr/bin:/bin", "FOLDER=" + folder_.path().string()},
            .settling = 500ms};
  }
  pid_t pid_of(int rank) const {
    const std::string text = test::slurp(folder_.path() / ("pid." + std::to_string(rank)));
    return text.empty() ? -1 : std::stoi(text);
  }
  // Whether the process of that rank has ended. A process that nobody has reaped yet counts as
  // ended.
  bool gone(int rank) const {
    const std::string stat = test::slurp("/proc/" + std::to_string(pid_of(rank)) + "/stat");
    return stat.empty() || stat.find(") Z ") != std::string::npos;
  }
  template <class Condition> static bool becomes(Condition condition) {
    for (const MonotonicTime begin = MonotonicTime::now(); !condition();
         std::this_thread::sleep_for(10ms))
      if (MonotonicTime::now() - begin > kLimit) return false;
    return true;
  }
  test::TemporaryFolder folder_;
};

TEST_F(RankProcesses, AreToldWhoTheyAreAndMeetInAFolderThatGoesAway) {
  const auto ended = run_ranks(program("echo $NSA_BENCH_RENDEZVOUS > $FOLDER/met.$R; "
                                       "touch $NSA_BENCH_RENDEZVOUS/$R",
                                       3));
  ASSERT_TRUE(ended) << ended.error().what;
  EXPECT_EQ(*ended, 0);
  const std::string met = test::slurp(folder_.path() / "met.0");
  EXPECT_EQ(test::slurp(folder_.path() / "met.2"), met);
  EXPECT_FALSE(std::filesystem::exists(met.substr(0, met.size() - 1)));
}

TEST_F(RankProcesses, AKilledRankIsNamedAndEndsTheOthers) {
  const auto ended = run_ranks(program("[ $R = 0 ] && exec sleep 1000; wait_for $FOLDER/pid.0; "
                                       "echo last words >&2; kill -KILL $$"));
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().what, StartsWith("rank 1 was killed by SIGKILL"));
  EXPECT_THAT(ended.error().what, HasSubstr("\n  last words"));
  EXPECT_THAT(ended.error().next, HasSubstr("dmesg"));
  EXPECT_TRUE(gone(0));
}

TEST_F(RankProcesses, RankZeroIsNamedToo) {
  const auto ended =
      run_ranks(program("[ $R = 1 ] && exec sleep 1000; wait_for $FOLDER/pid.1; kill -SEGV $$"));
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().what, "rank 0 was killed by SIGSEGV");
  EXPECT_TRUE(gone(1));
}

TEST_F(RankProcesses, AnExitCodeComesWithTheLastLines) {
  const auto ended = run_ranks(program("[ $R = 0 ] && exec sleep 1000; "
                                       "for i in $(seq 3000); do echo line $i; done >&2; exit 7"));
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().what, StartsWith("rank 1 ended with exit code 7"));
  EXPECT_THAT(ended.error().what, HasSubstr("\n  line 2991\n"));
  EXPECT_THAT(ended.error().what, HasSubstr("\n  line 3000"));
  EXPECT_THAT(ended.error().what, Not(HasSubstr("line 2990\n")));
}

TEST_F(RankProcesses, TheCauseIsNamedAndNotItsVictim) {
  const auto ended = run_ranks(program("[ $R = 0 ] && exit 8; wait_for $FOLDER/pid.0; "
                                       "while kill -0 $(cat $FOLDER/pid.0) 2> $FOLDER/no && "
                                       "! grep -q '^State:.Z' /proc/$(cat $FOLDER/pid.0)/status; "
                                       "do sleep 0.01; done; exit 7"));
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().what, StartsWith("rank 1 ended with exit code 7"));
}

TEST_F(RankProcesses, AVictimIsNamedWhereNoCauseShows) {
  const auto ended = run_ranks(program("[ $R = 0 ] && exec sleep 1000; exit 8"));
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().what, StartsWith("rank 1 ended with exit code 8"));
  EXPECT_TRUE(gone(0));
}

TEST_F(RankProcesses, ASignalEndsAll) {
  for (const char* signal : {"INT", "TERM", "HUP"}) {
    std::filesystem::remove(folder_.path() / "pid.0");
    const auto ended = run_ranks(program(std::string("[ $R = 0 ] && exec sleep 1000; "
                                                     "wait_for $FOLDER/pid.0; kill -") +
                                         signal + " $PPID; exec sleep 1000"));
    ASSERT_TRUE(ended) << ended.error().what;
    EXPECT_STREQ(::sigabbrev_np(*ended), signal);
    EXPECT_TRUE(gone(0));
    EXPECT_TRUE(gone(1));
  }
}

TEST_F(RankProcesses, DieWithTheirParent) {
  const RankProgram sleepers = program("exec sleep 1000");
  const pid_t parent = ::fork();
  if (parent == 0) {
    (void)run_ranks(sleepers);
    ::_exit(0);
  }
  ASSERT_TRUE(becomes([&] { return pid_of(0) > 0 && pid_of(1) > 0; }));
  EXPECT_FALSE(gone(0));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(becomes([&] { return gone(0) && gone(1); }));
}

TEST_F(RankProcesses, AProgramThatIsNotThereIsAnError) {
  RankProgram nothing = program("");
  nothing.arguments = {folder_.path() / "no-such-program"};
  const auto ended = run_ranks(nothing);
  ASSERT_FALSE(ended);
  EXPECT_THAT(ended.error().what, HasSubstr("starting rank 0: cannot start"));
}

TEST(OwnRank, IsReadFromTheEnvironment) {
  ::unsetenv(kRankVariable);
  EXPECT_FALSE(own_rank(2)->has_value());
  ::setenv(kRendezvousVariable, "/some/folder", 1);
  ::setenv(kRankVariable, "1", 1);
  EXPECT_EQ((*own_rank(2))->rank, 1);
  EXPECT_EQ((*own_rank(2))->rendezvous, "/some/folder");
  for (const char* wrong : {"2", "-1", "", "1x"}) {
    ::setenv(kRankVariable, wrong, 1);
    const auto own = own_rank(2);
    ASSERT_FALSE(own) << wrong;
    EXPECT_THAT(own.error().what, HasSubstr(std::string("\"") + wrong + "\""));
  }
  ::unsetenv(kRankVariable);
  ::unsetenv(kRendezvousVariable);
}

} // namespace
} // namespace nsa::bench
