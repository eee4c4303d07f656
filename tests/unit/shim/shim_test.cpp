// The shim and its ranks as real processes. The test plays nsad.
#include "tests/unit/shim/shim_harness.h"

#include "common/base/file.h"
#include "common/base/local_socket.h"
#include "common/base/text.h"
#include "daemon/proc/procfs.h"
#include "daemon/shim/client/attempt_files.h"

#include <algorithm>
#include <csignal>
#include <fcntl.h>
#include <random>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::shim::test {
namespace {

using namespace std::chrono_literals;
using wire::MessageType;

// Such messages once ended the shim, and with it every rank: the shim copied and printed what a
// rank had sent.
TEST(Shim, OutlivesWhatARankSaysToHarmIt) {
  Attempt attempt(2);
  const auto levels = [](size_t count) {
    return "{\"body\":" + std::string(count, '[') + std::string(count, ']') + "}";
  };
  std::string frames;
  for (const std::string& body :
       {levels(60000), levels(wire::kMaxRankDepth), std::string("{\"body\":"), std::string("[]"),
        levels(wire::kMaxRankDepth - 1)}) {
    const auto frame = wire::encode_frame({static_cast<uint8_t>(MessageType::kRankHello), 0, body});
    ASSERT_TRUE(frame);
    frames += *frame;
  }
  const auto finished = wire::encode(MessageType::kRankFinished,
                                     wire::RankFinished{0, 7, 0, wire::FinishReason::kCompleted});
  ASSERT_TRUE(finished);
  const auto file = attempt.folder() / "frames";
  ASSERT_TRUE(make_folder(attempt.folder()));
  ASSERT_TRUE(write_file_atomic(file, frames + *finished));
  attempt.plan.quotas = {1e6, 1e6, 1e9}; // quotas so high that they do not act here
  use_shell(attempt, 0, "cat " + file.string() + " >&" + std::to_string(wire::kRankLinkFd));
  const auto good = attempt.folder() / "good";
  ASSERT_TRUE(write_file_atomic(good, *finished));
  use_shell(attempt, 1, "cat " + good.string() + " >&" + std::to_string(wire::kRankLinkFd));
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0) && d.exited(1); }));
  EXPECT_EQ(nsad.find<wire::RankExited>(MessageType::kRankExited, 0)->exit_code, 0);
  EXPECT_EQ(nsad.find<wire::RankExited>(MessageType::kRankExited, 1)->exit_code, 0);
  // The shim passes on the valid messages, also those after an invalid one.
  EXPECT_EQ(nsad.rank_messages(MessageType::kRankFinished).size(), 2u);
  size_t hellos_of_0 = 0;
  for (const auto& message : nsad.rank_messages(MessageType::kRankHello))
    hellos_of_0 += message.rank == 0 ? 1 : 0;
  EXPECT_EQ(hellos_of_0, 1u);
  EXPECT_FALSE(attempt.shim_ended());
  uint64_t refused = 0;
  std::string why;
  for (const auto& message : nsad.heard())
    if (message.type == MessageType::kRefused &&
        message.body.value("what", "") == "malformed frames") {
      refused += message.body.value("count", uint64_t{0});
      why += message.body.value("why", "") + "\n";
    }
  EXPECT_EQ(refused, 4u);
  EXPECT_NE(why.find("nested deeper than 32 levels"), std::string::npos) << why;
  release_and_wait(attempt, nsad);
}

TEST(Shim, RunsRanksToTheirEndAndThenItself) {
  Attempt attempt(2);
  attempt.fake_all({"steps=5", "step_ms=4"});
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0) && d.exited(1); }));
  const auto hello = nsad.hello();
  EXPECT_EQ(hello.run_id, "abcde");
  EXPECT_EQ(hello.pid, attempt.shim_pid());
  EXPECT_EQ(hello.ranks.size(), 2u);
  EXPECT_EQ(nsad.pages().size(), 2u);
  for (Rank r : {0, 1}) {
    const auto exited = nsad.find<wire::RankExited>(MessageType::kRankExited, r);
    EXPECT_EQ(exited->exit_code, 0);
    EXPECT_EQ(exited->signal, 0);
    EXPECT_FALSE(exited->killed_by_shim);
    EXPECT_GT(exited->max_resident_bytes, 0u);
    // The shim reports an end before it writes the file, so a slow disk does not delay a restart.
    ASSERT_TRUE(eventually([&] { return read_exit(attempt.plan.attempt_folder, r).has_value(); }));
    EXPECT_EQ(read_exit(attempt.plan.attempt_folder, r)->pid, exited->pid);
    const auto record = nsad.pages()[static_cast<size_t>(r)].read_host();
    ASSERT_TRUE(record);
    EXPECT_EQ(nsad.pages()[static_cast<size_t>(r)].rank(), r);
    EXPECT_EQ(record->phase, progress::Phase::kShutDown);
    EXPECT_EQ(nsad.pages()[static_cast<size_t>(r)].read_device().completed_step, 5u);
  }
  EXPECT_EQ(nsad.rank_messages(MessageType::kRankFinished).size(), 2u);
  const auto started = read_started(attempt.plan.attempt_folder);
  ASSERT_TRUE(started);
  EXPECT_EQ(started->shim_pid, attempt.shim_pid());
  release_and_wait(attempt, nsad);
  EXPECT_NE(::access((attempt.folder() / kSocketName).c_str(), F_OK), 0);
}

TEST(Shim, ReportsExitCodesAndSignals) {
  Attempt attempt(4);
  use_shell(attempt, 0, "exit 7");
  use_shell(attempt, 1, "kill -SEGV $$");
  use_shell(attempt, 2, "kill -KILL $$");
  use_shell(attempt, 3, "exit 0");
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until(
      [](const Daemon& d) { return d.exited(0) && d.exited(1) && d.exited(2) && d.exited(3); }));
  const auto exited = [&](Rank r) {
    return *nsad.find<wire::RankExited>(MessageType::kRankExited, r);
  };
  EXPECT_EQ(exited(0).exit_code, 7);
  EXPECT_EQ(exited(1).signal, SIGSEGV);
  EXPECT_EQ(exited(1).exit_code, -1);
  EXPECT_EQ(exited(2).signal, SIGKILL);
  EXPECT_FALSE(exited(2).killed_by_shim);
  EXPECT_EQ(exited(3).exit_code, 0);
}

// The delays are printed, not bounded, because they depend on the load of the machine.
// tests/e2e/kill_rank records them with the real programs.
TEST(Shim, ReportsEachDeathWhenItHappens) {
  Attempt attempt(5);
  attempt.fake_all({"steps=100000", "peers=0"});
  attempt.start();
  Daemon nsad(attempt);
  std::vector<double> delays;
  for (Rank r = 0; r < 5; ++r) {
    const pid_t pid = started_pid(nsad, r);
    ASSERT_GT(pid, 0);
    const MonotonicTime killed = MonotonicTime::now();
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    ASSERT_TRUE(nsad.hear_until([&](const Daemon& d) { return d.exited(r); }));
    delays.push_back(to_seconds(MonotonicTime::now() - killed));
    for (Rank other = r + 1; other < 5; ++other)
      EXPECT_FALSE(nsad.exited(other));
  }
  std::sort(delays.begin(), delays.end());
  std::printf("death told after %.1f ms (median of 5)\n", delays[2] * 1e3);
}

TEST(Shim, KillsStoppedRanksWithoutContinuingThem) {
  Attempt attempt(2);
  attempt.fake_all({"steps=1000", "step_ms=4", "fault=stop_signal@3", "rank=1"});
  attempt.start();
  Daemon nsad(attempt);
  const pid_t pid = started_pid(nsad, 1);
  ASSERT_GT(pid, 0);
  ASSERT_TRUE(eventually([&] { return state_of(pid) == 'T'; }));
  ASSERT_TRUE(nsad.client().kill_ranks("test"));
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0) && d.exited(1); }));
  const auto exited = nsad.find<wire::RankExited>(MessageType::kRankExited, 1);
  EXPECT_EQ(exited->signal, SIGKILL);
  EXPECT_TRUE(exited->killed_by_shim);
  EXPECT_EQ(attempt.log_text(1).find("step 4"), std::string::npos); // it never continued
}

TEST(Shim, StopsRanksGentlyAfterACheckpoint) {
  Attempt attempt(2);
  attempt.fake_all({"steps=100000", "step_ms=4"});
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until(
      [](const Daemon& d) { return d.rank_messages(MessageType::kRankStep).size() > 3; }));
  ASSERT_TRUE(nsad.client().stop_ranks(true));
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0) && d.exited(1); }));
  const auto checkpoints = nsad.rank_messages(MessageType::kRankCheckpoint);
  ASSERT_EQ(checkpoints.size(), 1u);
  EXPECT_EQ(checkpoints[0].body.value("error", "-"), "");
  const auto finished = nsad.rank_messages(MessageType::kRankFinished);
  ASSERT_EQ(finished.size(), 2u);
  EXPECT_EQ(finished[0].body.value("reason", ""), "stopped");
  EXPECT_EQ(finished[0].body.value("step", 0), finished[1].body.value("step", 1));
}

TEST(Shim, SweepsGrandchildrenThatLeftTheGroup) {
  Attempt attempt;
  // The rank ends when its grandchild has started. The grandchild reports this through a named
  // pipe.
  use_shell(attempt, 0,
            "cd " + attempt.folder().string() +
                "; mkfifo there; setsid sh -c 'echo $$; echo > there; exec sleep 1000' & "
                "read word < there; exit 4");
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0); }));
  pid_t orphan = 0;
  ASSERT_TRUE(eventually([&] {
    const std::string text = attempt.log_text(0);
    orphan = text.empty() ? 0 : std::atoi(text.c_str());
    return orphan > 0;
  }));
  EXPECT_TRUE(eventually([&] { return state_of(orphan) == '-'; })) << "the orphan lives";
  release_and_wait(attempt, nsad);
}

TEST(Shim, RanksDieWithTheirShim) {
  Attempt attempt(2);
  attempt.fake_all({"steps=100000", "fault=stop_signal@2", "rank=1"});
  attempt.start();
  std::vector<pid_t> pids;
  {
    Daemon nsad(attempt);
    for (Rank r : {0, 1}) {
      pids.push_back(started_pid(nsad, r));
      ASSERT_GT(pids.back(), 0);
    }
  }
  ASSERT_TRUE(proc::send_signal(attempt.shim().pidfd.get(), SIGKILL));
  for (const pid_t pid : pids)
    EXPECT_TRUE(eventually([&] { return state_of(pid) == '-' || state_of(pid) == 'Z'; }));
}

TEST(Shim, LeavesNothingThatCannotBeEndedWhenItIsLost) {
  Attempt attempt;
  // The process is in a separate session, so it outlives rank and shim.
  use_shell(attempt, 0, "setsid sh -c 'echo $$; exec sleep 1000' & exec sleep 1000");
  attempt.start();
  pid_t orphan = 0;
  ASSERT_TRUE(eventually([&] { return (orphan = std::atoi(attempt.log_text(0).c_str())) > 0; }));
  ASSERT_TRUE(eventually([&] { return read_started(attempt.plan.attempt_folder).has_value(); }));
  ASSERT_TRUE(proc::send_signal(attempt.shim().pidfd.get(), SIGKILL));
  ASSERT_TRUE(eventually([&] { return attempt.shim_ended(); }));
  EXPECT_TRUE(lives(orphan));
  const auto ended = end_leftovers(attempt.plan.attempt_folder);
  ASSERT_TRUE(ended) << ended.error().what;
  EXPECT_GE(*ended, 1);
  EXPECT_TRUE(eventually([&] { return state_of(orphan) == '-' || state_of(orphan) == 'Z'; }));
  EXPECT_TRUE(eventually( // a process that is dying is still counted
      [&] { return end_leftovers(attempt.plan.attempt_folder).value_or(-1) == 0; }));
}

TEST(Shim, EndsNoRankOfAnotherNodeThatIsOnTheSameHost) {
  Attempt here, there;
  there.plan.token = here.plan.token; // they are two parts of one attempt
  for (Attempt* part : {&here, &there}) {
    use_shell(*part, 0, "echo $$; exec sleep 1000");
    part->start();
  }
  const auto rank_of = [](const Attempt& part) { return std::atoi(part.log_text(0).c_str()); };
  ASSERT_TRUE(eventually([&] { return rank_of(here) > 0 && rank_of(there) > 0; }));
  const auto ended = end_leftovers(there.plan.attempt_folder);
  ASSERT_TRUE(ended) << ended.error().what;
  EXPECT_TRUE(eventually([&] { return !lives(rank_of(there)); }));
  EXPECT_TRUE(lives(rank_of(here)));

  wire::LaunchPlan of_rank_8 = here.plan;
  of_rank_8.ranks.front().rank = 8;
  EXPECT_NE(cgroup_name(of_rank_8), cgroup_name(here.plan));
}

TEST(Shim, SurvivesGarbageFromARankAndAtItsDoor) {
  Attempt attempt;
  use_shell(attempt, 0, "head -c 100000 /dev/urandom >&3; echo sent; exec sleep 1000");
  attempt.start();
  ASSERT_TRUE(eventually([&] { return attempt.log_text(0) == "sent\n"; }));
  UniqueFd folder(::open(attempt.plan.attempt_folder.c_str(), O_PATH | O_DIRECTORY));
  const sockaddr_un address = socket_address(folder.get());
  std::vector<UniqueFd> strangers; // more connections than the shim accepts at once
  for (int i = 0; i < 20; ++i) {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
    if (i % 2 == 0) ::send(socket.get(), std::string(64, 'g').data(), 64, MSG_NOSIGNAL);
    strangers.push_back(std::move(socket));
  }
  for (int i = 0; i < 20; i += 2) {
    char byte;
    EXPECT_LE(::recv(strangers[static_cast<size_t>(i)].get(), &byte, 1, 0), 0) << "not thrown out";
  }
  Daemon nsad(attempt); // connects while the silent connections are still open
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return !d.heard().empty(); }));
  EXPECT_TRUE(nsad.hello().ranks.at(0).running);
}

TEST(Shim, LivesInAFolderWithALongName) {
  Attempt attempt(1, std::string(120, 'd') + "/" + std::string(120, 'e'));
  attempt.fake(0, {"steps=2"});
  attempt.start();
  Daemon nsad(attempt);
  EXPECT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0); }));
}

TEST(Shim, ReportsAProgramThatCannotBeStarted) {
  Attempt attempt(2);
  attempt.fake(0, {"steps=100000"});
  attempt.plan.ranks[1].arguments[0] = "/nonexistent/program";
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) {
    return d.exited(0) && d.find<wire::LaunchFailed>(MessageType::kLaunchFailed);
  }));
  const auto failed = nsad.find<wire::LaunchFailed>(MessageType::kLaunchFailed);
  EXPECT_NE(failed->what.find("/nonexistent/program"), std::string::npos) << failed->what;
  EXPECT_TRUE(nsad.find<wire::RankExited>(MessageType::kRankExited, 0)->killed_by_shim);
  release_and_wait(attempt, nsad);
}

TEST(Shim, AnAttemptRunsOnce) {
  Attempt attempt;
  attempt.fake(0, {"steps=100000"});
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return !d.heard().empty(); }));
  ASSERT_TRUE(eventually([&] { return read_started(attempt.plan.attempt_folder).has_value(); }));
  const auto again = start_shim(attempt.plan, attempt.options);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kConflict);
}

TEST(Shim, HandsTheStoreSocketToRankZeroAndKeepsNoCopy) {
  Attempt attempt(2);
  use_shell(attempt, 0, "readlink /proc/self/fd/5; ls /proc/$PPID/fd -l; exec sleep 1000");
  use_shell(attempt, 1, "ls /proc/self/fd | tr '\\n' ' '; exec sleep 1000");
  const std::filesystem::path place = attempt.folder() / "rendezvous";
  attempt.plan.rendezvous = "unix:" + place.string();
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(eventually([&] { return attempt.log_text(0).find("socket:") == 0; }));
  struct stat info{};
  ASSERT_EQ(::stat(place.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u) << "nobody else may even look for the socket";
  const auto dial = [&] {
    return connect_in_folder(place, wire::kStoreSocketName, SOCK_SEQPACKET);
  };
  EXPECT_TRUE(dial());
  // Rank 1 has descriptors 0 to 4 and that of the listing itself. It has no store.
  ASSERT_TRUE(eventually([&] { return attempt.log_text(1).size() > 8; }));
  EXPECT_EQ(attempt.log_text(1), "0 1 2 3 4 5 ") << "5 is the folder that ls reads";
  // When rank 0 dies, its listener closes, so a client notices it at once.
  const pid_t pid = started_pid(nsad, 0);
  ASSERT_GT(pid, 0);
  ASSERT_EQ(::kill(pid, SIGKILL), 0);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0); }));
  const auto refused = dial();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
}

TEST(Shim, UsesACgroupWhereOneCanBeWritten) {
  Attempt attempt;
  const auto root = attempt.folder() / "cgroup";
  std::filesystem::create_directories(root);
  if (::unshare(CLONE_NEWNS) != 0 ||
      ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("none", root.c_str(), "cgroup2", 0, nullptr) != 0)
    GTEST_SKIP() << "no cgroup v2 can be mounted here (needs root)";
  use_shell(attempt, 0, "setsid sleep 1000 & echo up; exec sleep 1000");
  attempt.options.cgroup_root = root.string();
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(eventually([&] { return attempt.log_text(0) == "up\n"; }));
  const auto started = read_started(attempt.plan.attempt_folder);
  ASSERT_TRUE(started);
  EXPECT_EQ(started->cgroup, (root / "nsa-abcde-1").string());
  const auto members = read_file(started->cgroup + "/cgroup.procs");
  ASSERT_TRUE(members);
  EXPECT_EQ(std::count(members->begin(), members->end(), '\n'), 2) << *members;
  ASSERT_TRUE(nsad.client().kill_ranks("test"));
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0); }));
  release_and_wait(attempt, nsad);
  EXPECT_FALSE(std::filesystem::exists(started->cgroup));
  ::umount2(root.c_str(), MNT_DETACH);
}

TEST(Shim, StaysSmall) {
  Attempt attempt(8);
  attempt.fake_all({"steps=100000", "step_ms=10"});
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until(
      [](const Daemon& d) { return d.rank_messages(MessageType::kRankStep).size() > 400; }));
  const uint64_t resident = proc::read_resident_bytes(attempt.shim_pid());
  std::printf("shim of 8 ranks: %.2f MB resident\n", static_cast<double>(resident) / 1e6);
  RecordProperty("resident_bytes", std::to_string(resident));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LE(resident, 3'000'000u);
#endif
}

} // namespace
} // namespace nsa::shim::test
