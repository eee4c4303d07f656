// Who may be a submitter, which files and processes may be given away or killed, and what only root
// can change.
#include "daemon/privilege/account.h"
#include "daemon/privilege/starter.h"
#include "daemon/privilege/system_mode.h"
#include "daemon/proc/process.h"

#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::privilege {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uid_t kNobodyUid = 65534; // has no login and owns nothing

class Folder {
public:
  Folder() {
    char name[] = "/tmp/nsa-privilege-XXXXXX";
    path = ::mkdtemp(name);
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  fs::path path;
};

UniqueFd open_folder(const fs::path& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

// Runs `body` in a child that has become nobody, and returns its exit code.
template <class Body> int as_nobody(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    Account nobody{kNobodyUid, kNobodyUid, "nobody", "/", {kNobodyUid}};
    ::_exit(become(nobody) ? body() : 99);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

TEST(Submitter, IsRefusedByEachRule) {
  const SubmitterRules rules{1000, 700, 300};
  const Account good{1001, 1001, "ann", "/home/ann", {1001, 700}};
  EXPECT_TRUE(check_submitter(good, rules));
  const auto refusal = [&](auto change) {
    Account account = good;
    change(account);
    const Status checked = check_submitter(account, rules);
    EXPECT_FALSE(checked);
    EXPECT_EQ(checked.error().code, ErrorCode::kPermission);
    return checked.error().what;
  };
  EXPECT_THAT(refusal([](Account& a) { a.uid = 0; }), HasSubstr("root"));
  EXPECT_THAT(refusal([](Account& a) { a.uid = 300; }), HasSubstr("daemon's own"));
  EXPECT_THAT(refusal([](Account& a) { a.uid = 999; }), HasSubstr("system.minimum_uid = 1000"));
  EXPECT_THAT(refusal([](Account& a) { a.gid = 0; }), HasSubstr("group of root"));
  EXPECT_THAT(refusal([](Account& a) { a.groups = {1001}; }), HasSubstr("no member"));
}

TEST(Submitter, IsLookedUpWithItsGroups) {
  const auto root = look_up_account("root");
  ASSERT_TRUE(root);
  EXPECT_EQ(root->uid, 0u);
  EXPECT_THAT(root->groups, testing::Contains(0u));
  EXPECT_EQ(look_up_account(uid_t{4123456789}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(look_up_group("nsa-no-such-group").error().code, ErrorCode::kNotFound);
}

TEST(Become, IsForGood) {
  if (::geteuid() != 0) GTEST_SKIP() << "becoming another account needs root";
  EXPECT_EQ(as_nobody([] {
              gid_t groups[8];
              if (::getuid() != kNobodyUid || ::geteuid() != kNobodyUid || ::getgid() != kNobodyUid)
                return 1;
              if (::getgroups(8, groups) != 1 || groups[0] != kNobodyUid) return 2;
              if (::setuid(0) == 0 || ::seteuid(0) == 0 || ::setgid(0) == 0) return 3;
              return ::access("/root/.", X_OK) == 0 || ::open("/etc/shadow", O_RDONLY) >= 0 ? 4 : 0;
            }),
            0);
  // A process that is not root cannot become another user.
  EXPECT_EQ(as_nobody([] {
              const Account other{1, 1, "daemon", "/", {1}};
              return become(other) ? 1 : 0;
            }),
            0);
}

TEST(Gift, IsAnEmptyFolderOfTheDaemonsAmongTheRuns) {
  Folder folder;
  const fs::path runs = folder.path / "runs", run = runs / "p1";
  fs::create_directories(run / "inner");
  fs::create_directories(folder.path / "outside");
  const UniqueFd all = open_folder(runs);
  const auto check = [&](const fs::path& path, uid_t daemon = ::geteuid()) {
    const UniqueFd opened = open_folder(path);
    const Status checked = check_gift(opened.get(), all.get(), daemon);
    return checked ? std::string() : checked.error().what;
  };
  EXPECT_THAT(check(run), HasSubstr("not empty"));
  fs::remove(run / "inner");
  EXPECT_EQ(check(run), "");
  EXPECT_THAT(check(run, kNobodyUid), HasSubstr("not the daemon's"));
  EXPECT_THAT(check(folder.path / "outside"), HasSubstr("folder of runs"));
  EXPECT_THAT(check(runs), HasSubstr("folder of runs"));
  std::ofstream(runs / "file") << "text";
  const UniqueFd file(::open((runs / "file").c_str(), O_RDONLY));
  EXPECT_FALSE(check_gift(file.get(), all.get(), ::geteuid()));
}

TEST(Victim, IsAProcessOfTheSubmitter) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const UniqueFd pidfd = proc::open_pidfd(child).value();
  EXPECT_TRUE(check_victim(pidfd.get(), ::getuid()));
  EXPECT_EQ(check_victim(pidfd.get(), ::getuid() + 1).error().code, ErrorCode::kPermission);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(check_victim(pidfd.get(), ::getuid()).error().code, ErrorCode::kNotFound);
}

TEST(Trusted, IsWhatOnlyRootCanChange) {
  Folder folder;
  const uid_t own = ::geteuid();
  const fs::path program = folder.path / "bin" / "program";
  fs::create_directories(program.parent_path());
  std::ofstream(program) << "#!/bin/sh\n";
  ::chmod(program.parent_path().c_str(), 0755);
  ::chmod(program.c_str(), 0755);
  EXPECT_TRUE(check_trusted(program, own)) << check_trusted(program, own).error().what;
  ::chmod(program.c_str(), 0775);
  EXPECT_THAT(check_trusted(program, own).error().next,
              HasSubstr("chmod go-w " + program.string()));
  ::chmod(program.c_str(), 0755);
  ::chmod(program.parent_path().c_str(), 0777);
  EXPECT_THAT(check_trusted(program, own).error().what, HasSubstr("writable by others"));
  ::chmod(program.parent_path().c_str(), 0755);
  EXPECT_EQ(check_trusted(folder.path / "gone", own).error().code, ErrorCode::kNotFound);
  if (::geteuid() != 0) GTEST_SKIP() << "giving a file to another account needs root";
  ASSERT_EQ(::chown(program.c_str(), kNobodyUid, kNobodyUid), 0);
  EXPECT_THAT(check_trusted(program).error().next, HasSubstr("chown root " + program.string()));
  EXPECT_TRUE(check_trusted(program, kNobodyUid));
}

} // namespace
} // namespace nsa::privilege
