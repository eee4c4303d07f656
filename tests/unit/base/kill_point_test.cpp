// Points at which a test build can kill itself.
#include "common/base/kill_point.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa {
namespace {

TEST(KillPoint, EachHasANameOfItsOwn) {
  const std::set<std::string_view> names(kChoiceNames<KillPoint>.begin(),
                                         kChoiceNames<KillPoint>.end());
  EXPECT_EQ(names.size(), kChoiceNames<KillPoint>.size());
  EXPECT_EQ(static_cast<size_t>(KillPoint::kCheckpointDeleted) + 1, names.size());
}

// Returns the wait status of a process that passes the points so many times.
int end_of(const std::string& armed, const std::string& mark, int passes) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("JOB_KILL_POINT", armed.c_str(), 1);
    ::setenv("JOB_KILL_POINT_MARK", mark.c_str(), 1);
    for (int i = 0; i < passes; ++i) {
      pass_kill_point(KillPoint::kLedgerCommit);
      pass_kill_point(KillPoint::kLedgerCommitted);
    }
    ::_exit(0);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

bool was_killed(int status) {
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

TEST(KillPoint, AProcessDiesOnceAtTheArmedPass) {
  std::string pattern = testing::TempDir() + "nsa-kill-point-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  const std::string mark = folder / "mark";
  EXPECT_EQ(end_of("ledger-committed:3", mark, 2), 0) << "not yet";
  EXPECT_EQ(end_of("spec-write:1", mark, 5), 0) << "another point";
  EXPECT_EQ(end_of("no-point:1", mark, 5), 0);
  EXPECT_EQ(end_of("ledger-committed:3", "", 5), 0) << "nobody would know that it has died";
  EXPECT_EQ(was_killed(end_of("ledger-committed:3", mark, 3)), has_kill_points());
  EXPECT_EQ(std::filesystem::exists(mark), has_kill_points());
  EXPECT_EQ(end_of("ledger-committed:3", mark, 3), 0) << "once";
  std::filesystem::remove_all(folder);
}

} // namespace
} // namespace nsa
