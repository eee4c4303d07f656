// A real starter, run as root, does jobs as the account nobody. This process plays nsad.
#include "common/base/pass_descriptors.h"
#include "daemon/privilege/starter.h"
#include "daemon/privilege/starter_host.h"
#include "daemon/proc/process.h"

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::privilege {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr uid_t kNobody = 65534;

class StarterTest : public testing::Test {
protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "the starter needs root";
    const auto nobody = look_up_account(kNobody);
    if (!nobody) GTEST_SKIP() << "there is no account nobody";
    char name[] = "/tmp/nsa-starter-XXXXXX";
    folder = ::mkdtemp(name);
    ::chmod(folder.c_str(), 0755);
    fs::create_directory(folder / "runs");
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    starter = ::fork();
    if (starter == 0) {
      ::close(ends[0]);
      StarterOptions options;
      options.rules = {1000, nobody->gid, 0}; // root plays the account of nsad
      options.runs_folder.reset(::open((folder / "runs").c_str(), O_PATH | O_DIRECTORY));
      ::_exit(Starter(UniqueFd(ends[1]), std::move(options)).run() ? 0 : 1);
    }
    ::close(ends[1]);
    socket = ends[0];
    host = std::make_shared<StarterHost>(UniqueFd(socket));
  }

  void TearDown() override {
    host.reset(); // the starter ends with its nsad
    if (starter > 0) ::waitpid(starter, &starter_status, 0);
    std::error_code ignored;
    if (!folder.empty()) fs::remove_all(folder, ignored);
  }

  fs::path write(const std::string& name, const std::string& text, mode_t mode, uid_t owner = 0) {
    const fs::path path = folder / name;
    std::ofstream(path) << text;
    ::chmod(path.c_str(), mode);
    EXPECT_EQ(::chown(path.c_str(), owner, owner), 0);
    return path;
  }

  static uid_t owner_of(const fs::path& path) {
    struct stat info{};
    EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
    return info.st_uid;
  }

  fs::path folder;
  int socket = -1, starter_status = 0;
  pid_t starter = -1;
  std::shared_ptr<StarterHost> host;
};

TEST_F(StarterTest, OpensWhatTheSubmitterMayOpenAndNothingElse) {
  const fs::path open = write("open", "for all", 0644);
  const fs::path own = write("own", "nobody's", 0600, kNobody);
  const fs::path secret = write("secret", "root's", 0600);
  EXPECT_EQ(read_file(open, 100, opener(host, kNobody)).value_or(""), "for all");
  EXPECT_EQ(read_file(own, 100, opener(host, kNobody)).value_or(""), "nobody's");
  EXPECT_EQ(host->open_file(kNobody, secret).error().code, ErrorCode::kPermission);
  fs::create_symlink(secret, folder / "link");
  EXPECT_EQ(host->open_file(kNobody, folder / "link").error().code, ErrorCode::kPermission);
  EXPECT_EQ(host->open_file(kNobody, folder / "gone").error().code, ErrorCode::kNotFound);
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0666), 0);
  EXPECT_THAT(host->open_file(kNobody, folder / "fifo").error().what, HasSubstr("FIFO"));
}

TEST_F(StarterTest, RefusesEverybodyWhoIsNoSubmitter) {
  const fs::path open = write("open", "for all", 0644);
  EXPECT_THAT(host->open_file(0, open).error().what, HasSubstr("root"));
  EXPECT_THAT(host->open_file(1, open).error().what, HasSubstr("minimum_uid"));
  EXPECT_EQ(host->open_file(4123456789, open).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(host->kill_shim(0, proc::open_pidfd(::getpid()).value().get()));
  EXPECT_FALSE(host->make_run_folder(1, folder / "runs" / "p0"));
}

TEST_F(StarterTest, GivesARunItsFolderAndWritesInItAsTheSubmitter) {
  const fs::path run = folder / "runs" / "p1";
  ASSERT_TRUE(host->make_run_folder(kNobody, run));
  EXPECT_EQ(owner_of(run), kNobody);
  EXPECT_EQ(owner_of(run / "checkpoints"), kNobody);
  EXPECT_EQ(fs::status(run).permissions(), fs::perms::owner_all);
  ASSERT_TRUE(host->make_run_folder(kNobody, run)) << "again, as a resume does";
  ASSERT_TRUE(host->write_files(kNobody, run, {{"run.toml", "text", 0640}}));
  EXPECT_EQ(owner_of(run / "run.toml"), kNobody);
  // A symbolic link in the path gives no access to files that are not the submitter's.
  const fs::path secret = write("secret", "root's", 0600);
  fs::create_symlink(folder, run / "out");
  EXPECT_FALSE(host->write_files(kNobody, run / "out", {{"secret", "changed", 0600}}));
  EXPECT_EQ(read_file(secret).value_or(""), "root's");
  EXPECT_FALSE(host->write_files(kNobody, run, {{"../secret", "changed", 0600}}));
  ASSERT_TRUE(host->remove_run_folder(kNobody, run));
  EXPECT_FALSE(fs::exists(run));
  EXPECT_TRUE(fs::exists(secret)) << "the link went, not what it led to";
  ASSERT_TRUE(host->remove_run_folder(kNobody, run)) << "is gone already";
}

TEST_F(StarterTest, GivesNoFolderThatIsSomebodyElses) {
  const fs::path run = folder / "runs" / "p1";
  fs::create_directory(run);
  ASSERT_EQ(::chown(run.c_str(), 1, 1), 0);
  EXPECT_EQ(host->make_run_folder(kNobody, run).error().code, ErrorCode::kConflict);
  const fs::path full = folder / "runs" / "p2";
  fs::create_directory(full);
  std::ofstream(full / "file") << "text";
  EXPECT_THAT(host->make_run_folder(kNobody, full).error().what, HasSubstr("not empty"));
  fs::create_directory_symlink(folder, folder / "runs" / "p3");
  EXPECT_FALSE(host->make_run_folder(kNobody, folder / "runs" / "p3"));
  EXPECT_EQ(owner_of(folder), 0u);
}

TEST_F(StarterTest, KillsOnlyTheSubmittersProcesses) {
  const auto start = [](uid_t uid) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    if (uid != 0 && (::setgroups(0, nullptr) != 0 || ::setresuid(uid, uid, uid) != 0)) ::_exit(1);
    ::pause();
    ::_exit(0);
  };
  const pid_t mine = start(0), theirs = start(kNobody);
  const UniqueFd mine_fd = proc::open_pidfd(mine).value(),
                 theirs_fd = proc::open_pidfd(theirs).value();
  // Until it has become nobody.
  while (::kill(theirs, 0) == 0 && !check_victim(theirs_fd.get(), kNobody))
    ::usleep(1000);
  EXPECT_EQ(host->kill_shim(kNobody, mine_fd.get()).error().code, ErrorCode::kPermission);
  EXPECT_FALSE(proc::has_ended(mine_fd.get()));
  EXPECT_TRUE(host->kill_shim(kNobody, theirs_fd.get()));
  int status = 0;
  EXPECT_EQ(::waitpid(theirs, &status, 0), theirs);
  EXPECT_TRUE(WIFSIGNALED(status));
  ::kill(mine, SIGKILL);
  ::waitpid(mine, nullptr, 0);
}

TEST_F(StarterTest, ListsNoCheckpointThatTheSubmitterCannotRead) {
  const fs::path run = folder / "runs" / "p1";
  ASSERT_TRUE(host->make_run_folder(kNobody, run));
  EXPECT_TRUE(host->list_checkpoints(kNobody, run, false).value().empty());
  EXPECT_FALSE(host->choose_checkpoint(kNobody, run, {{1, 5, "x"}}).value().chosen);
  EXPECT_EQ(host->read_started(kNobody, run).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(host->read_exits(kNobody, run, 2).value().empty());
  EXPECT_EQ(host->connect_shim(kNobody, run).error().code, ErrorCode::kUnavailable);
}

// A body that is no valid job ends only its own child.
TEST_F(StarterTest, OutlivesABodyThatIsNoJob) {
  for (const char* text : {"", "{", "[[[[", R"({"call":"no_such_call","arguments":{}})",
                           R"({"call":"open_file","arguments":{"path":5}})"}) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const UniqueFd mine(ends[0]);
    UniqueFd theirs(ends[1]);
    const UniqueFd body(::memfd_create("body", MFD_CLOEXEC));
    ASSERT_TRUE(write_all(body.get(), text, std::strlen(text)));
    RequestHeader header{.verb = Verb::kJob, .uid = kNobody, .seconds = 10};
    const int descriptors[] = {theirs.get(), body.get()};
    ASSERT_GT(send_with_descriptors(socket, {reinterpret_cast<const char*>(&header), sizeof header},
                                    descriptors),
              0);
    theirs.reset();
    EXPECT_FALSE(read_answer(mine.get(), std::chrono::seconds(20))) << text;
  }
  EXPECT_EQ(read_file(write("open", "yes", 0644), 100, opener(host, kNobody)).value_or(""), "yes");
}

TEST_F(StarterTest, EndsWithItsNsad) {
  host.reset();
  ASSERT_EQ(::waitpid(starter, &starter_status, 0), starter);
  starter = -1;
  EXPECT_EQ(starter_status, 0);
}

TEST_F(StarterTest, EndsWhenWhatItIsSentIsNoRequest) {
  ASSERT_EQ(::send(socket, "hello", 5, 0), 5);
  ASSERT_EQ(::waitpid(starter, &starter_status, 0), starter);
  starter = -1;
  EXPECT_EQ(WEXITSTATUS(starter_status), 1);
  EXPECT_EQ(host->open_file(kNobody, "/etc/hosts").error().code, ErrorCode::kUnavailable);
}

} // namespace
} // namespace nsa::privilege
