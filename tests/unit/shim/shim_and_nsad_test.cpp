// The shim while nsad leaves, returns, or is replaced by another nsad. The test plays nsad.
#include "tests/unit/shim/shim_harness.h"

#include "common/base/file.h"
#include "common/base/text.h"
#include "common/wire/protocol.h"
#include "daemon/proc/procfs.h"
#include "daemon/shim/client/attempt_files.h"

#include <algorithm>
#include <csignal>
#include <random>
#include <sys/socket.h>
#include <unistd.h>

namespace nsa::shim::test {
namespace {

using namespace std::chrono_literals;
using wire::MessageType;

TEST(Shim, KeepsEverythingWhileNsadIsAway) {
  Attempt attempt(2);
  attempt.fake_all({"steps=30", "step_ms=8", "fault=exit@20", "code=3", "rank=1"});
  attempt.start();
  uint64_t recorded = 0;
  std::vector<uint64_t> sequences;
  {
    Daemon nsad(attempt);
    ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.heard().size() > 8; }));
    // Later messages are not in the ledger, so the shim sends them again.
    recorded = nsad.last_sequence() / 2;
    ASSERT_TRUE(nsad.client().acknowledge(recorded));
  }
  // nsad is away. Rank 1 fails, and rank 0 waits for it in the collective.
  ASSERT_TRUE(eventually([&] { return read_exit(attempt.plan.attempt_folder, 1).has_value(); }));
  Daemon nsad(attempt, recorded);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(1); }));
  EXPECT_EQ(nsad.find<wire::RankExited>(MessageType::kRankExited, 1)->exit_code, 3);
  EXPECT_EQ(nsad.heard().at(1).sequence, recorded + 1); // the client checks the rest for gaps
  EXPECT_EQ(nsad.rank_messages(MessageType::kRankInjected).size(), 1u);
  ASSERT_EQ(nsad.rank_messages(MessageType::kRankError).size(), 1u);
  ASSERT_TRUE(nsad.client().kill_ranks("test"));
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0); }));
  EXPECT_TRUE(nsad.find<wire::RankExited>(MessageType::kRankExited, 0)->killed_by_shim);
  release_and_wait(attempt, nsad);
}

// nsad dies many times, each time with a different part of the messages in its ledger. In the end
// the ledger is complete.
TEST(Shim, NothingIsLostInAStormOfReconnections) {
  Attempt attempt(2);
  attempt.fake_all({"steps=200", "step_ms=4", "checkpoint_every=2"});
  attempt.start();
  const auto exits = [](const std::vector<wire::Message>& messages) {
    return std::count_if(messages.begin(), messages.end(),
                         [](const auto& m) { return m.type == MessageType::kRankExited; });
  };
  std::mt19937 random(11);
  std::vector<wire::Message> ledger;
  int deaths = 0;
  while (exits(ledger) < 2) {
    Daemon nsad(attempt, ledger.size());
    const size_t enough = 1 + random() % 12;
    ASSERT_TRUE(nsad.hear_until([&](const Daemon& d) {
      return d.heard().size() > enough || exits(ledger) + exits(d.heard()) == 2;
    }));
    // nsad dies before it records the rest. On a busy machine more messages may have arrived than
    // the test waited for.
    const size_t recorded = random() % std::min(nsad.heard().size(), enough + 1);
    for (size_t i = 1; i <= recorded; ++i) {
      ASSERT_EQ(nsad.heard()[i].sequence, ledger.size() + 1);
      ledger.push_back(nsad.heard()[i]);
    }
    if (random() % 2 == 0) {
      ASSERT_TRUE(nsad.client().acknowledge(ledger.size()));
    }
    ++deaths;
  }
  std::printf("%d deaths of nsad, %zu messages\n", deaths, ledger.size());
  EXPECT_GT(deaths, 20);
  uint64_t checkpoints = 0;
  for (const auto& message : ledger) {
    if (message.type != MessageType::kRankMessage) continue;
    const auto inner = message.body.get<wire::RankMessage>();
    if (inner.type != static_cast<uint8_t>(MessageType::kRankCheckpoint)) continue;
    EXPECT_EQ(inner.body.value("step", uint64_t{0}), ++checkpoints * 2);
  }
  EXPECT_EQ(checkpoints, 100u);
}

TEST(Shim, RefusesAWrongToken) {
  Attempt attempt;
  attempt.fake(0, {"steps=100000"});
  attempt.start();
  Daemon good(attempt);
  ASSERT_TRUE(good.hear_until([](const Daemon& d) { return !d.heard().empty(); }));
  auto socket = connect_socket(attempt.plan.attempt_folder);
  ASSERT_TRUE(socket);
  auto bad = ShimClient::greet(std::move(*socket), attempt.plan.token + "x", 0);
  ASSERT_TRUE(bad);
  bool closed = false, heard = false;
  ASSERT_TRUE(eventually([&] {
    const auto received = bad->on_readable();
    closed = received && received->closed;
    heard = heard || (received && !received->messages.empty());
    return closed;
  }));
  EXPECT_FALSE(heard);
  // The attempt's own nsad is not disturbed.
  const size_t before = good.heard().size();
  EXPECT_TRUE(good.hear_until([&](const Daemon& d) { return d.heard().size() > before; }));
  struct stat info{};
  ASSERT_EQ(::stat((attempt.folder() / kSocketName).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(Shim, RefusesAnotherProtocolAndAnswersWithItsOwn) {
  Attempt attempt;
  attempt.fake(0, {"steps=100000"});
  attempt.start();
  Daemon good(attempt);
  ASSERT_TRUE(good.hear_until([](const Daemon& d) { return !d.heard().empty(); }));
  auto socket = connect_socket(attempt.plan.attempt_folder);
  ASSERT_TRUE(socket);
  wire::DaemonHello hello;
  hello.protocol = 2;
  hello.token = attempt.plan.token;
  const auto bytes = wire::encode(MessageType::kDaemonHello, hello);
  ASSERT_EQ(::send(socket->get(), bytes->data(), bytes->size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes->size()));
  wire::FrameDecoder decoder;
  std::optional<wire::ShimHello> answer;
  bool closed = false;
  ASSERT_TRUE(eventually([&] {
    char read[1 << 14];
    const ssize_t got = ::recv(socket->get(), read, sizeof read, MSG_DONTWAIT);
    if (got > 0) decoder.feed({read, static_cast<size_t>(got)});
    closed = got == 0;
    return closed;
  }));
  if (auto frame = decoder.next(); frame && *frame)
    answer = wire::decode_message(**frame)->body.get<wire::ShimHello>();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->protocol, wire::kProtocol);
  const size_t before = good.heard().size();
  EXPECT_TRUE(good.hear_until([&](const Daemon& d) { return d.heard().size() > before; }));
}

// An older nsad does not say which layout of steps it reads, and does not know kPackedStep.
TEST(Shim, AnOlderNsadGetsStepReportsInJson) {
  Attempt attempt;
  attempt.fake(0, {"steps=100000", "step_ms=4"});
  attempt.start();
  {
    Daemon newer(attempt); // it got some steps in packed form, and acknowledges none
    ASSERT_TRUE(newer.hear_until(
        [](const Daemon& d) { return d.rank_messages(MessageType::kRankStep).size() > 3; }));
    EXPECT_TRUE(std::ranges::any_of(
        newer.heard(), [](const auto& m) { return m.type == MessageType::kPackedStep; }));
  }
  auto socket = connect_socket(attempt.plan.attempt_folder);
  ASSERT_TRUE(socket);
  const nlohmann::json hello = {
      {"protocol", wire::kProtocol}, {"token", attempt.plan.token}, {"acknowledged_sequence", 0}};
  const auto bytes = wire::encode_message({MessageType::kDaemonHello, 0, hello});
  ASSERT_EQ(::send(socket->get(), bytes->data(), bytes->size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes->size()));
  wire::FrameDecoder decoder;
  std::vector<wire::RankStep> steps;
  uint64_t last = 0;
  ASSERT_TRUE(eventually([&] {
    char read[1 << 14];
    const ssize_t got = ::recv(socket->get(), read, sizeof read, MSG_DONTWAIT);
    if (got > 0) decoder.feed({read, static_cast<size_t>(got)});
    for (auto frame = decoder.next(); frame && *frame; frame = decoder.next()) {
      const auto message = wire::decode_message(**frame);
      EXPECT_NE(message->type, MessageType::kPackedStep);
      if (message->type == MessageType::kShimHello) continue;
      EXPECT_EQ(message->sequence, ++last);
      if (message->body.value("type", 0) == static_cast<int>(MessageType::kRankStep))
        steps.push_back(wire::body_as<wire::RankStep>(message->body["body"]).value());
    }
    return steps.size() > 6;
  }));
  for (size_t i = 0; i < steps.size(); ++i)
    EXPECT_GE(steps[i].step, i + 1) << "a newer step may replace one that was not sent yet";
}

TEST(Shim, AClientRefusesAShimOfAnotherProtocol) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd shim(ends[1]);
  auto client = ShimClient::greet(UniqueFd(ends[0]), "secret", 0);
  ASSERT_TRUE(client);
  wire::ShimHello hello;
  hello.protocol = 2;
  hello.token = "secret";
  hello.run_id = "abcde";
  const auto bytes = wire::encode(MessageType::kShimHello, hello);
  ASSERT_EQ(::send(shim.get(), bytes->data(), bytes->size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes->size()));
  const auto received = client->on_readable();
  ASSERT_FALSE(received);
  EXPECT_EQ(received.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(received.error().what.find("speaks protocol 2, this program speaks 1"),
            std::string::npos);
  EXPECT_NE(received.error().next.find("nsactl cancel abcde"), std::string::npos);
}

TEST(Shim, ANewerNsadTakesOver) {
  Attempt attempt;
  attempt.fake(0, {"steps=100000"});
  attempt.start();
  Daemon older(attempt);
  ASSERT_TRUE(older.hear_until([](const Daemon& d) { return d.heard().size() > 2; }));
  Daemon newer(attempt, older.last_sequence());
  ASSERT_TRUE(newer.hear_until([](const Daemon& d) { return !d.heard().empty(); }));
  ASSERT_TRUE(newer.hear_until([](const Daemon& d) { return d.heard().size() > 2; }));
  EXPECT_TRUE(older.hear_until([](const Daemon& d) { return d.closed(); }));
}

// User mode. The "nsad" only records that it was started, and its process id.
void restart_with(Attempt& attempt, const std::string& script) {
  attempt.plan.restart_daemon = {
      "/bin/sh", "-c", "echo $$ >> " + attempt.plan.attempt_folder + "/nsad-starts; " + script};
}
std::vector<std::string> starts(const Attempt& attempt) {
  auto lines = split(read_file(attempt.folder() / "nsad-starts").value_or(""), '\n');
  // After the last newline there is nothing, or a line that is still being written.
  lines.pop_back();
  return lines;
}

TEST(Shim, StartsNsadAgainWhenItVanishes) {
  Attempt attempt;
  attempt.fake(0, {"steps=100000"});
  restart_with(attempt, "exec sleep 1000");
  attempt.start();
  {
    Daemon nsad(attempt);
    ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.heard().size() > 2; }));
  }
  ASSERT_TRUE(eventually([&] { return !starts(attempt).empty(); }));
  const pid_t started = std::stoi(starts(attempt).at(0));
  const auto stat = proc::read_stat(started);
  ASSERT_TRUE(stat);
  EXPECT_NE(stat->parent, attempt.shim_pid()) << "the shim would sweep it away";
  EXPECT_NE(stat->session, ::getsid(attempt.shim_pid()));
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.heard().size() > 1; }));
  ASSERT_TRUE(nsad.client().kill_ranks("test"));
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0); }));
  release_and_wait(attempt, nsad);
  EXPECT_EQ(starts(attempt).size(), 1u);
  EXPECT_TRUE(lives(started)) << "nsad was swept away with the ranks";
  ::kill(started, SIGKILL);
}

TEST(Shim, StartsNsadAgainThatDiedBeforeItHadConnected) {
  Attempt attempt;
  attempt.fake(0, {"steps=100000"});
  restart_with(attempt, "exec sleep 1000");
  const pid_t nsad = ::fork();
  ASSERT_GE(nsad, 0);
  if (nsad == 0) ::_exit(start_shim(attempt.plan, attempt.options) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(nsad, &status, 0), nsad);
  ASSERT_EQ(status, 0);
  // The shim does this before the 10 s are over in which nsad must connect.
  EXPECT_TRUE(eventually([&] { return !starts(attempt).empty(); }, 9s));
  Daemon next(attempt);
  ASSERT_TRUE(next.client().kill_ranks("test"));
  ASSERT_TRUE(next.hear_until([](const Daemon& d) { return d.exited(0); }));
  ASSERT_TRUE(next.client().release());
  EXPECT_TRUE(next.hear_until([](const Daemon& d) { return d.closed(); }));
  for (const std::string& pid : starts(attempt))
    ::kill(std::stoi(pid), SIGKILL);
}

TEST(Shim, StartsNoSecondNsadWhileOneRuns) {
  Attempt attempt;
  attempt.fake(0, {"steps=100000"});
  restart_with(attempt, "exec sleep 1000"); // never connects
  attempt.start();
  {
    Daemon nsad(attempt);
    ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.heard().size() > 2; }));
  }
  ASSERT_TRUE(eventually([&] { return starts(attempt).size() == 1; }));
  const pid_t first = std::stoi(starts(attempt).at(0));
  // The next try would come one second later. It must find the first process alive.
  EXPECT_FALSE(eventually([&] { return starts(attempt).size() > 1; }, 1500ms));
  ::kill(first, SIGKILL);
  EXPECT_TRUE(eventually([&] { return starts(attempt).size() == 2; }));
  ::kill(std::stoi(starts(attempt).at(1)), SIGKILL);
}

TEST(Shim, LetsNsadGoThatSaidGoodbye) {
  Attempt attempt;
  attempt.fake(0, {"steps=100000"});
  restart_with(attempt, "exit 0");
  attempt.start();
  {
    Daemon nsad(attempt);
    ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.heard().size() > 2; }));
    ASSERT_TRUE(nsad.client().say_goodbye());
  }
  EXPECT_FALSE(eventually([&] { return !starts(attempt).empty(); }, 700ms));
}

TEST(Shim, EndsAloneWhenNobodyReleasesIt) {
  Attempt attempt;
  attempt.fake(0, {"steps=2"});
  attempt.options.linger_seconds = 0.3;
  attempt.start();
  EXPECT_TRUE(eventually([&] { return attempt.shim_ended(); }));
  EXPECT_TRUE(read_exit(attempt.plan.attempt_folder, 0));
}

TEST(Shim, PassesAShutdownOnAsAStopRequest) {
  Attempt attempt(2);
  attempt.fake_all({"steps=100000", "step_ms=4"});
  attempt.start();
  Daemon nsad(attempt);
  ASSERT_TRUE(nsad.hear_until(
      [](const Daemon& d) { return d.rank_messages(MessageType::kRankStep).size() > 3; }));
  ASSERT_TRUE(proc::send_signal(attempt.shim().pidfd.get(), SIGTERM));
  ASSERT_TRUE(nsad.hear_until([](const Daemon& d) { return d.exited(0) && d.exited(1); }));
  EXPECT_EQ(nsad.find<wire::RankExited>(MessageType::kRankExited, 0)->exit_code, 0);
  EXPECT_EQ(nsad.rank_messages(MessageType::kRankCheckpoint).size(), 1u);
}

// This happens to a run on several nodes: the head starts the next attempt without ranks that it
// cannot reach.
TEST(Shim, EndsRanksThatNobodyAsksFor) {
  Attempt attempt(2);
  attempt.fake_all({"steps=100000", "step_ms=4"});
  attempt.plan.orphan_seconds = 10; // longer than nsad needs to connect
  attempt.start();
  pid_t pid = 0;
  {
    Daemon nsad(attempt);
    ASSERT_TRUE(nsad.hear_until(
        [](const Daemon& d) { return d.rank_messages(MessageType::kRankHello).size() == 2; }));
    pid = started_pid(nsad, 0);
    ASSERT_GT(pid, 0);
  }
  ASSERT_TRUE(eventually([&] { return state_of(pid) == '-'; }));
  EXPECT_FALSE(attempt.shim_ended()) << "it must still tell how they ended";
  Daemon next(attempt);
  ASSERT_TRUE(next.hear_until([](const Daemon& d) { return d.exited(0) && d.exited(1); }));
  const auto exited = next.find<wire::RankExited>(MessageType::kRankExited, 1);
  EXPECT_TRUE(exited->killed_by_shim);
  release_and_wait(attempt, next);
}

} // namespace
} // namespace nsa::shim::test
