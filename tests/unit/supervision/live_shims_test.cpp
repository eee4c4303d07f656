// Which processes nsad takes for live shims of its runs. Stand-ins with a shim's command line play
// them.
#include "daemon/supervision/live_shims.h"

#include "daemon/plan/plan.h"
#include "tests/support/shim_stand_in.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <csignal>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::control {
namespace {

namespace fs = std::filesystem;

using test::kRankOption;

class LiveShims : public ::testing::Test {
protected:
  pid_t start(const std::string& folder, uid_t user = ::geteuid(),
              const char* option = test::kShimOption) {
    return shims_.start(folder, user, option);
  }

  std::string run_folder(const RunId& run) {
    const std::string folder = (root_.path() / "runs" / run).string();
    fs::create_directories(folder);
    return folder;
  }
  std::string attempt(const RunId& run, AttemptNumber number) {
    return plan::attempt_folder(run_folder(run), number);
  }

  test::TemporaryFolder root_;
  test::ShimStandIns shims_;
};

TEST_F(LiveShims, AreFoundByTheirCommandLinesNewestAttemptFirst) {
  const pid_t first = start(attempt("abcde", 1)), second = start(attempt("abcde", 12)),
              other = start(attempt("bcdef", 3));
  const auto found = find_live_shims(root_.path().string());
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].identity.pid, second);
  EXPECT_EQ(found[0].attempt, 12);
  EXPECT_EQ(found[0].folder, attempt("abcde", 12));
  EXPECT_EQ(found[0].user, ::geteuid());
  EXPECT_GT(found[0].identity.start_time_ticks, 0u);
  EXPECT_EQ(found[1].identity.pid, first);
  EXPECT_EQ(found[2].identity.pid, other);
  EXPECT_EQ(found[2].run, "bcdef");
}

// When a shim starts nsad again, its child has the shim's command line for a moment.
TEST_F(LiveShims, OfSeveralOfOneAttemptTheOldestIsTheShim) {
  const pid_t shim = start(attempt("abcde", 1));
  ::usleep(50'000); // start times have a resolution of a hundredth of a second
  start(attempt("abcde", 1));
  const auto found = find_live_shims(root_.path().string());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].identity.pid, shim);
}

TEST_F(LiveShims, TheStateFolderMayHaveBeenNamedByAnotherPath) {
  const test::TemporaryFolder elsewhere;
  fs::create_directory_symlink(root_.path(), elsewhere.path() / "link");
  run_folder("abcde");
  const pid_t pid = start((elsewhere.path() / "link/runs/abcde/attempts/1").string());
  const auto found = find_live_shims(root_.path().string());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].identity.pid, pid);
  EXPECT_EQ(found[0].folder, attempt("abcde", 1));
}

TEST_F(LiveShims, OthersAreNot) {
  const test::TemporaryFolder other_state;
  fs::create_directories(other_state.path() / "runs/abcde");
  run_folder("abcde");
  start((other_state.path() / "runs/abcde/attempts/1").string());
  start((root_.path() / "runs/abcde/attempts/0").string());
  start((root_.path() / "runs/abcde/attempts/1x").string());
  start((root_.path() / "runs/abcde/1").string());
  start((root_.path() / "runs/../runs/x/attempts/1").string());
  start("attempts/1");
  // A rank's command line has the option later.
  start(attempt("abcde", 7), ::geteuid(), kRankOption);
  start("");
  const pid_t dead = start(attempt("abcde", 5));
  ::kill(dead, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(dead), &info, WEXITED | WNOWAIT), 0); // a zombie
  EXPECT_TRUE(find_live_shims(root_.path().string()).empty());
}

// Another user of the host may give any command line to a process.
TEST_F(LiveShims, AProcessOfAnotherUserIsNoShimOfOurs) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kOther = 60'001;
  start(attempt("abcde", 1), kOther);
  EXPECT_TRUE(find_live_shims(root_.path().string()).empty());
  // In system mode the submitter owns the run's folder.
  ASSERT_EQ(::chown(run_folder("abcde").c_str(), kOther, kOther), 0);
  const auto found = find_live_shims(root_.path().string());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].user, kOther);
}

} // namespace
} // namespace nsa::control
