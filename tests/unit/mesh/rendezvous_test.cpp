// The store in which ranks meet: its rules and its messages. It also tests what a rank sees when
// rank 0 comes late, hangs or dies, and when strangers connect.
#include "common/base/local_socket.h"
#include "common/wire/launch_plan.h"
#include "tests/support/temporary_folder.h"
#include "worker/mesh/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nsa::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

StoreMessage request(StoreOperation operation, std::vector<std::string> texts, int64_t number = 0) {
  return {7, operation, number, std::move(texts)};
}

TEST(KeyValueStore, AnswersWhoWaitedWhenTheLastKeyCame) {
  KeyValueStore store;
  EXPECT_TRUE(store.handle(1, request(StoreOperation::kWait, {"a", "b"})).empty());
  EXPECT_TRUE(store.handle(2, request(StoreOperation::kGet, {"b"})).empty());
  EXPECT_EQ(store.handle(3, request(StoreOperation::kSet, {"a", "1"})).size(), 1u);
  const auto due = store.handle(3, request(StoreOperation::kSet, {"b", "2"}));
  ASSERT_EQ(due.size(), 3u);
  EXPECT_EQ(due[0].to, 3u);
  EXPECT_EQ(due[1].to, 1u);
  EXPECT_EQ(due[2].to, 2u);
  EXPECT_EQ(due[2].message.texts, std::vector<std::string>{"2"});
  EXPECT_TRUE(store.handle(3, request(StoreOperation::kSet, {"b", "3"})).size() == 1)
      << "nobody is told twice";
}

TEST(KeyValueStore, ANewRequestTakesThePlaceOfOneThatWaits) {
  KeyValueStore store;
  EXPECT_TRUE(store.handle(1, request(StoreOperation::kGet, {"a"})).empty());
  EXPECT_EQ(store.handle(1, request(StoreOperation::kCheck, {"a"})).at(0).message.number, 0);
  EXPECT_EQ(store.handle(2, request(StoreOperation::kSet, {"a", "1"})).size(), 1u);
  EXPECT_TRUE(store.handle(3, request(StoreOperation::kGet, {"z"})).empty());
  store.forget(3);
  EXPECT_EQ(store.handle(2, request(StoreOperation::kSet, {"z", "1"})).size(), 1u);
}

TEST(KeyValueStore, AddsDeletesAndCounts) {
  KeyValueStore store;
  EXPECT_EQ(store.handle(1, request(StoreOperation::kAdd, {"n"}, 5)).at(0).message.number, 5);
  EXPECT_EQ(store.handle(1, request(StoreOperation::kAdd, {"n"}, -2)).at(0).message.number, 3);
  EXPECT_EQ(store.handle(1, request(StoreOperation::kCount, {})).at(0).message.number, 1);
  EXPECT_EQ(store.handle(1, request(StoreOperation::kDelete, {"n"})).at(0).message.number, 1);
  EXPECT_EQ(store.handle(1, request(StoreOperation::kDelete, {"n"})).at(0).message.number, 0);
  EXPECT_EQ(store.handle(1, request(StoreOperation::kSet, {"key alone"})).at(0).message.number, -1);
}

TEST(KeyValueStore, ASumPastTheLargestNumberGoesOnWithTheSmallest) {
  KeyValueStore store;
  store.handle(1, request(StoreOperation::kAdd, {"n"}, INT64_MAX));
  EXPECT_EQ(store.handle(1, request(StoreOperation::kAdd, {"n"}, 1)).at(0).message.number,
            INT64_MIN);
}

TEST(StoreMessage, TravelsWhole) {
  const StoreMessage message{
      9, StoreOperation::kCompareSet, -3, {"key", std::string("\0x", 2), ""}};
  const auto bytes = encode(message);
  ASSERT_TRUE(bytes);
  const auto back = decode_store_message(*bytes);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->id, 9u);
  EXPECT_EQ(back->number, -3);
  EXPECT_EQ(back->texts, message.texts);
  for (size_t size = 0; size < bytes->size(); ++size)
    EXPECT_FALSE(decode_store_message(bytes->substr(0, size))) << size << " of its bytes";
  EXPECT_FALSE(decode_store_message(*bytes + "x"));
  EXPECT_FALSE(decode_store_message("GET / HTTP/1.1\r\nHost: example\r\n\r\n"));
  EXPECT_FALSE(encode({1, StoreOperation::kSet, 0, {"key", std::string(70'000, 'x')}}));
}

class StoreTest : public ::testing::Test {
protected:
  std::shared_ptr<Store> open(Rank rank, Duration limit = 20s) {
    auto store = Store::open(rank, {place_.path(), -1, limit});
    EXPECT_TRUE(store) << store.error().what;
    return store ? *store : nullptr;
  }
  test::TemporaryFolder place_;
};

TEST_F(StoreTest, ARankMayComeBeforeRankZero) {
  std::shared_ptr<Store> second;
  std::jthread early([&] { second = open(1); });
  std::this_thread::sleep_for(60ms); // so that it finds no rank 0 at least once
  const auto first = open(0);
  early.join();
  ASSERT_TRUE(first && second);
  ASSERT_TRUE(rendezvous_over(first)->publish("mesh/0", "1"));
  EXPECT_EQ(rendezvous_over(second)->wait_for("mesh/0", 20s).value_or(""), "1");
}

TEST_F(StoreTest, WithoutRankZeroARankSaysWhere) {
  const auto store = Store::open(1, {place_.path(), -1, 50ms});
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(store.error().what, HasSubstr(place_.path().string()));
}

TEST_F(StoreTest, ATimeOutLeavesTheConnectionInOrder) {
  const auto first = open(0), second = open(1);
  const auto a = rendezvous_over(first), b = rendezvous_over(second);
  const auto none = b->wait_for("late", 30ms);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kExhausted);
  ASSERT_TRUE(a->publish("late", "came")); // answers a request for which nobody waits any more
  ASSERT_TRUE(a->publish("other", "2"));
  EXPECT_EQ(b->wait_for("other", 20s).value_or(""), "2");
  EXPECT_EQ(b->wait_for("late", 20s).value_or(""), "came");
}

// The death of rank 0 is noticed at once, whether a rank waits, asks later, or connects later.
TEST_F(StoreTest, TheDeathOfRankZeroIsSeenAtOnce) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t zero = ::fork();
  if (zero == 0) {
    ::alarm(100);
    const auto store = Store::open(0, {place_.path(), -1, 20s});
    if (!store || ::write(ready[1], "1", 1) != 1) ::_exit(1);
    while (true)
      ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto second = open(1);
  const auto rendezvous = rendezvous_over(second);
  ASSERT_TRUE(rendezvous->publish("here", "1"));
  const MonotonicTime begin = MonotonicTime::now();
  std::jthread killer([&] {
    std::this_thread::sleep_for(50ms);
    ::kill(zero, SIGKILL);
  });
  const auto none = rendezvous->wait_for("never", 90s);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(rendezvous->publish("more", "1").error().code, ErrorCode::kUnavailable);
  ::waitpid(zero, nullptr, 0);
  const auto late = Store::open(1, {place_.path(), -1, 90s});
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kUnavailable);
  EXPECT_LT(to_seconds(MonotonicTime::now() - begin), 45.0);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(StoreTest, WhoSaysSomethingElseIsTurnedAwayAndHoldsNobodyUp) {
  const auto first = open(0);
  auto stranger = connect_in_folder(place_.path(), wire::kStoreSocketName, SOCK_SEQPACKET);
  auto silent = connect_in_folder(place_.path(), wire::kStoreSocketName, SOCK_SEQPACKET);
  ASSERT_TRUE(stranger && silent);
  ASSERT_EQ(::send(stranger->get(), "mesh/0", 6, MSG_NOSIGNAL), 6);
  pollfd turned_away{stranger->get(), POLLIN, 0};
  ASSERT_EQ(::poll(&turned_away, 1, 20'000), 1);
  char byte;
  EXPECT_LE(::recv(stranger->get(), &byte, 1, MSG_DONTWAIT), 0);
  const auto second = open(1);
  ASSERT_TRUE(rendezvous_over(second)->publish("mesh/0", "1"));
}

// Another user of the host cannot reach the socket in its folder. Even with an open folder, the
// store would not answer.
TEST_F(StoreTest, AnotherUserCannotReachIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto first = open(0);
  const auto attack = [&] {
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (::setgid(60'001) != 0 || ::setuid(60'001) != 0) ::_exit(9);
      const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET, 0));
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      const std::string path = (place_.path() / wire::kStoreSocketName).string();
      path.copy(address.sun_path, sizeof address.sun_path - 1);
      if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
        ::_exit(1);
      const auto bytes = encode({1, StoreOperation::kSet, 0, {"mesh/0", "poison"}});
      if (::send(socket.get(), bytes->data(), bytes->size(), MSG_NOSIGNAL) < 0) ::_exit(2);
      char answer[256];
      ::_exit(::recv(socket.get(), answer, sizeof answer, 0) > 0 ? 0 : 2);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(attack(), 1) << "the folder is closed to it";
  ::chmod(place_.path().c_str(), 0777);
  ::chmod((place_.path() / wire::kStoreSocketName).c_str(), 0777);
  EXPECT_EQ(attack(), 2) << "the kernel says who it is";
  const auto mine = rendezvous_over(first)->wait_for("mesh/0", 50ms);
  ASSERT_FALSE(mine);
  EXPECT_EQ(mine.error().code, ErrorCode::kExhausted) << "nothing was written";
}

TEST(RendezvousAddress, IsAFolderOrAHostWithAPort) {
  const auto here = parse_rendezvous("unix:/tmp/a b");
  ASSERT_TRUE(here);
  EXPECT_EQ(here->folder, "/tmp/a b");
  const auto there = parse_rendezvous("tcp:127.0.0.1:4000");
  ASSERT_TRUE(there);
  EXPECT_EQ(there->tcp->text(), "127.0.0.1:4000");
  for (const char* text : {"", "unix:", "tcp:", "tcp:127.0.0.1", "udp:127.0.0.1:4000", "/tmp"})
    EXPECT_FALSE(parse_rendezvous(text)) << text;
}

// Paths of attempts are often longer than 107 bytes, the limit of a socket's address.
TEST(LocalSocket, FoldersMayHaveLongPaths) {
  const test::TemporaryFolder root;
  const auto folder = root.path() / std::string(100, 'a') / std::string(100, 'b');
  std::filesystem::create_directories(folder);
  const auto listener = listen_in_folder(folder, "x.sock", SOCK_STREAM, 1);
  ASSERT_TRUE(listener) << listener.error().what;
  EXPECT_TRUE(connect_in_folder(folder, "x.sock", SOCK_STREAM));
  EXPECT_EQ(connect_in_folder(folder, "y.sock", SOCK_STREAM).error().code, ErrorCode::kNotFound);
}

} // namespace
} // namespace nsa::comm
