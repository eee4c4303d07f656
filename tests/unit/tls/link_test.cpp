// A head and its nodes on the loopback interface, with real handshakes.
#include "common/tls/link.h"

#include "common/base/unique_fd.h"
#include "tests/support/run_until.h"

#include <arpa/inet.h>
#include <cerrno>
#include <filesystem>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <random>
#include <sys/socket.h>

namespace nsa::tls {
namespace {

constexpr Duration kOneDay = std::chrono::hours(24);

Identity identity(const Authority& authority, const std::string& name,
                  WallTime now = WallTime::now(), Duration lifetime = kOneDay) {
  PrivateKey key = *PrivateKey::make();
  Certificate certificate = *authority.sign(*key.request(name), name, now, lifetime);
  return {authority.certificate(), std::move(certificate), std::move(key)};
}

class LinkTest : public testing::Test {
protected:
  void listen(LinkLimits limits = {}) {
    Listener::Events events;
    events.accepted = [this](std::unique_ptr<Link> link) { accepted_.push_back(std::move(link)); };
    events.refused = [this](const std::string& address, const Error& why) {
      refused_.emplace_back(address, why);
    };
    auto made = Listener::listen(loop_, "127.0.0.1", 0, identity(authority_, kHeadName),
                                 std::move(events), limits);
    ASSERT_TRUE(made) << made.error().what;
    listener_ = std::move(*made);
  }

  void dial(const Identity& node) {
    call_ = connect(loop_, "127.0.0.1", listener_->port(), node,
                    [this](Result<std::unique_ptr<Link>> link) { take(std::move(link)); });
  }
  void dial_to_join(const std::string& fingerprint) {
    call_ = join(loop_, "127.0.0.1", listener_->port(), fingerprint,
                 [this](Result<std::unique_ptr<Link>> link) { take(std::move(link)); });
  }
  void take(Result<std::unique_ptr<Link>> link) {
    if (link)
      link_ = std::move(*link);
    else
      error_ = std::move(link).error();
  }

  bool wait_until(const std::function<bool()>& holds) { return test::run_until(loop_, holds); }

  net::EventLoop loop_;
  Authority authority_ = *Authority::make(WallTime::now());
  std::unique_ptr<Listener> listener_;
  std::vector<std::unique_ptr<Link>> accepted_;
  std::vector<std::pair<std::string, Error>> refused_;
  std::unique_ptr<net::Handle> call_;
  std::unique_ptr<Link> link_;
  std::optional<Error> error_, closed_;
};

TEST_F(LinkTest, FramesArriveInOrderInBothDirections) {
  listen();
  dial(identity(authority_, "node-1"));
  ASSERT_TRUE(wait_until([&] { return link_ && !accepted_.empty(); }));
  EXPECT_EQ(accepted_[0]->peer().certificate->node(), "node-1");
  EXPECT_EQ(link_->peer().certificate->node(), kHeadName);

  std::vector<std::string> head_got, node_got;
  accepted_[0]->start({[&](const wire::Frame& frame) {
                         head_got.push_back(frame.body);
                         EXPECT_TRUE(accepted_[0]->send({2, 0, "echo " + frame.body}));
                       },
                       {}});
  link_->start({[&](const wire::Frame& frame) { node_got.push_back(frame.body); }, {}});
  constexpr int kFrames = 500;
  for (int i = 0; i < kFrames; ++i)
    ASSERT_TRUE(link_->send({1, 0, std::to_string(i) + std::string(1000, 'x')}));
  ASSERT_TRUE(wait_until([&] { return node_got.size() == kFrames; }));
  for (int i = 0; i < kFrames; ++i) {
    EXPECT_EQ(head_got[i], std::to_string(i) + std::string(1000, 'x'));
    EXPECT_EQ(node_got[i], "echo " + head_got[i]);
  }
  EXPECT_EQ(link_->queued_bytes(), 0u);
}

TEST_F(LinkTest, WhatWasSentBeforeTheEndArrives) {
  listen();
  dial(identity(authority_, "node-1"));
  ASSERT_TRUE(wait_until([&] { return link_ && !accepted_.empty(); }));
  size_t got = 0;
  accepted_[0]->start(
      {[&](const wire::Frame&) { ++got; }, [&](const Error& why) { closed_ = why; }});
  for (int i = 0; i < 50; ++i)
    ASSERT_TRUE(link_->send({1, 0, std::string(100'000, 'x')}));
  link_.reset();
  ASSERT_TRUE(wait_until([&] { return closed_.has_value(); }));
  EXPECT_EQ(got, 50u);
  EXPECT_EQ(closed_->code, ErrorCode::kUnavailable);
  EXPECT_FALSE(accepted_[0]->send({1, 0, "late"}));
}

TEST_F(LinkTest, AFullQueueIsToldAndNothingIsLost) {
  LinkLimits limits;
  limits.queue_bytes = 1 << 20;
  listen(limits);
  call_ = connect(
      loop_, "127.0.0.1", listener_->port(), identity(authority_, "node-1"),
      [this](Result<std::unique_ptr<Link>> link) { take(std::move(link)); }, limits);
  ASSERT_TRUE(wait_until([&] { return link_ && !accepted_.empty(); }));
  size_t sent = 0, got = 0;
  const std::string body(100'000, 'x');
  while (link_->send({1, 0, body})) // the other end does not read yet
    ASSERT_LT(++sent, 1000u);
  EXPECT_GE(link_->queued_bytes(), limits.queue_bytes);
  accepted_[0]->start({[&](const wire::Frame&) { ++got; }, {}});
  EXPECT_TRUE(wait_until([&] { return got == sent; }));
}

TEST_F(LinkTest, EitherEndMayGoInItsOwnCallback) {
  listen();
  dial(identity(authority_, "node-1"));
  ASSERT_TRUE(wait_until([&] { return link_ && !accepted_.empty(); }));
  accepted_[0]->start({[&](const wire::Frame&) { accepted_.clear(); }, {}});
  link_->start({{}, [&](const Error& why) {
                  closed_ = why;
                  link_.reset();
                }});
  ASSERT_TRUE(link_->send({1, 0, "a"}));
  ASSERT_TRUE(link_->send({1, 0, "b"}));
  EXPECT_TRUE(wait_until([&] { return closed_ && !link_; }));
}

// ---- who is let in
// ---------------------------------------------------------------------------------

TEST_F(LinkTest, ANodeOfAnotherClusterIsRefusedByBothEnds) {
  listen();
  const Authority other = *Authority::make(WallTime::now());
  dial(identity(other, "node-1"));
  ASSERT_TRUE(wait_until([&] { return error_ && !refused_.empty(); }));
  EXPECT_EQ(error_->code, ErrorCode::kPermission);
  EXPECT_TRUE(accepted_.empty());
}

TEST_F(LinkTest, ACertificateOfAnotherAuthorityIsRefusedByTheHead) {
  listen();
  const Authority other = *Authority::make(WallTime::now());
  Identity forged = identity(other, "node-1");
  // It trusts the right head, but the head does not trust it.
  forged.authority = authority_.certificate();
  dial(forged);
  ASSERT_TRUE(wait_until([&] { return !refused_.empty(); }));
  EXPECT_EQ(refused_[0].second.code, ErrorCode::kPermission);
  EXPECT_NE(refused_[0].second.what.find("certificate is refused"), std::string::npos)
      << refused_[0].second.what;
  EXPECT_TRUE(accepted_.empty());
}

TEST_F(LinkTest, AnExpiredCertificateIsRefusedWithThatReason) {
  listen();
  const WallTime past = WallTime::now() + -10 * kOneDay;
  dial(identity(authority_, "node-1", past, kOneDay));
  ASSERT_TRUE(wait_until([&] { return !refused_.empty(); }));
  EXPECT_NE(refused_[0].second.what.find("expired"), std::string::npos) << refused_[0].second.what;
  EXPECT_TRUE(accepted_.empty());
}

TEST_F(LinkTest, ANodeCannotPlayTheHead) {
  Listener::Events events;
  events.accepted = [this](std::unique_ptr<Link> link) { accepted_.push_back(std::move(link)); };
  events.refused = [](const std::string&, const Error&) {};
  listener_ = std::move(
      *Listener::listen(loop_, "127.0.0.1", 0, identity(authority_, "node-2"), std::move(events)));
  dial(identity(authority_, "node-1"));
  ASSERT_TRUE(wait_until([&] { return error_.has_value(); }));
  EXPECT_EQ(error_->code, ErrorCode::kPermission);

  error_.reset();
  dial_to_join(authority_.certificate().fingerprint());
  ASSERT_TRUE(wait_until([&] { return error_.has_value(); }));
  EXPECT_EQ(error_->code, ErrorCode::kPermission) << error_->what;
}

TEST_F(LinkTest, ANodeThatJoinsHasNoCertificateAndLearnsTheAuthority) {
  listen();
  dial_to_join(authority_.certificate().fingerprint());
  ASSERT_TRUE(wait_until([&] { return link_ && !accepted_.empty(); }));
  EXPECT_FALSE(accepted_[0]->peer().certificate);
  ASSERT_TRUE(link_->peer().authority);
  EXPECT_EQ(link_->peer().authority->fingerprint(), authority_.certificate().fingerprint());
}

TEST_F(LinkTest, ATokenOfAnotherHeadIsNotShownToThisOne) {
  listen();
  dial_to_join(Authority::make(WallTime::now())->certificate().fingerprint());
  ASSERT_TRUE(wait_until([&] { return error_.has_value(); }));
  EXPECT_EQ(error_->code, ErrorCode::kPermission);
  EXPECT_FALSE(link_);
}

// ---- what arrives at the port
// ------------------------------------------------------------------------

UniqueFd plain_socket(uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

TEST_F(LinkTest, GarbageOnThePortIsRefusedAndHurtsNobody) {
  listen();
  std::mt19937 random(7);
  for (int i = 0; i < 50; ++i) {
    const UniqueFd fd = plain_socket(listener_->port());
    std::string bytes(random() % 2000, '\0');
    for (char& c : bytes)
      c = static_cast<char>(random());
    // The beginning of a TLS record.
    if (i % 2) bytes.insert(0, std::string("\x16\x03\x01\x02\x00", 5));
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  ASSERT_TRUE(wait_until([&] { return refused_.size() == 50; }));
  dial(identity(authority_, "node-1"));
  EXPECT_TRUE(wait_until([&] { return link_ && !accepted_.empty(); }));
}

TEST_F(LinkTest, WhoSaysNothingIsSentAway) {
  LinkLimits limits;
  limits.handshake = std::chrono::milliseconds(100);
  listen(limits);
  const UniqueFd silent = plain_socket(listener_->port());
  ASSERT_TRUE(wait_until([&] { return !refused_.empty(); }));
  EXPECT_EQ(refused_[0].second.code, ErrorCode::kUnavailable);
}

// Whether the other end has closed the connection.
bool is_closed(const UniqueFd& fd) {
  char byte = 0;
  const ssize_t got = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno == ECONNRESET);
}

size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

// Callers connect and stay silent. The oldest one gives way to the next, long before its time is
// over.
TEST_F(LinkTest, SilentCallsAreBoundedAndKeepNobodyOut) {
  LinkLimits limits;
  limits.handshake = std::chrono::hours(1);
  limits.handshakes = 8;
  listen(limits);
  const size_t before = open_descriptors();
  constexpr size_t kCalls = 40;
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < kCalls; ++i)
    silent.push_back(plain_socket(listener_->port()));
  ASSERT_TRUE(wait_until([&] { return refused_.size() >= kCalls - limits.handshakes; }));
  EXPECT_NE(refused_[0].second.what.find("gave way"), std::string::npos) << refused_[0].second.what;
  EXPECT_LE(open_descriptors(), before + kCalls + limits.handshakes);
  ASSERT_TRUE(wait_until([&] { return is_closed(silent.front()); }));
  EXPECT_FALSE(is_closed(silent.back())) << "the newest is given its time";
  dial(identity(authority_, "node-1"));
  EXPECT_TRUE(wait_until([&] { return link_ && !accepted_.empty(); }));
}

// A closed link whose peer does not read keeps its descriptor until nsad gives the link up.
TEST_F(LinkTest, ClosedLinksThatNobodyReadsAreBounded) {
  LinkLimits limits;
  limits.flush = std::chrono::hours(1);
  limits.goodbyes = 4;
  listen(limits);
  const size_t before = open_descriptors();
  constexpr size_t kCalls = 12;
  std::vector<std::unique_ptr<Link>> theirs; // never started, so they do not read
  for (size_t i = 0; i < kCalls; ++i) {
    dial(identity(authority_, "node-1"));
    ASSERT_TRUE(wait_until([&] { return link_ && !accepted_.empty(); }));
    theirs.push_back(std::move(link_));
    ASSERT_TRUE(accepted_[0]->send({1, 0, "goodbye"}));
    accepted_.clear();
  }
  EXPECT_LE(open_descriptors(), before + kCalls + limits.goodbyes);
}

TEST_F(LinkTest, NobodyThereIsSaidWithTheAddress) {
  listen();
  const uint16_t port = listener_->port();
  listener_.reset();
  call_ = connect(loop_, "127.0.0.1", port, identity(authority_, "node-1"),
                  [this](Result<std::unique_ptr<Link>> link) { take(std::move(link)); });
  ASSERT_TRUE(wait_until([&] { return error_.has_value(); }));
  EXPECT_EQ(error_->code, ErrorCode::kUnavailable);
  EXPECT_NE(error_->what.find(std::to_string(port)), std::string::npos) << error_->what;
}

TEST_F(LinkTest, ATakenPortIsAConflict) {
  listen();
  const auto second =
      Listener::listen(loop_, "127.0.0.1", listener_->port(), identity(authority_, kHeadName), {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
}

} // namespace
} // namespace nsa::tls
