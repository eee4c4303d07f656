#include "cluster_fixture.h"

namespace nsa::cluster {
namespace {

TEST_F(ClusterTest, ANodeJoinsIsHeardAndTellsItsClock) {
  Agent& agent = add("node-1");
  ASSERT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
  EXPECT_TRUE(was_told(Notice::Kind::kJoined));
  EXPECT_TRUE(was_told(Notice::Kind::kReady));
  ASSERT_TRUE(wait_until([&] { return node("node-1").round_trip_ns > 0; }));
  EXPECT_EQ(node("node-1").facts.processors, 2);
  // Both ends read the same clock, so the measured offset is at most the round trip.
  EXPECT_LE(std::abs(agent.clock_offset().count()), agent.round_trip().count());
}

TEST_F(ClusterTest, ANodeNeedsItsTokenOnce) {
  add("node-1");
  ASSERT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
  agents_.clear();
  ASSERT_TRUE(wait_until([&] { return is("node-1", NodeState::kLost); }));
  auto membership = Membership::load(folder_ / "node-1");
  ASSERT_TRUE(membership) << membership.error().what;
  start("node-1", std::move(*membership));
  EXPECT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
}

TEST_F(ClusterTest, AHeadThatComesBackIsCalledByAllItsNodes) {
  for (const std::string name : {"a", "b", "c"})
    add(name);
  ASSERT_TRUE(wait_until([&] { return ready_.size() == 3; }));
  head_.reset();
  ASSERT_TRUE(wait_until([&] { return cut_.size() == 3; }));
  start_head();
  EXPECT_TRUE(wait_until([&] {
    return is("a", NodeState::kReady) && is("b", NodeState::kReady) && is("c", NodeState::kReady);
  }));
  EXPECT_TRUE(ended_.empty());
}

// ---- tokens
// -----------------------------------------------------------------------------------------

TEST_F(ClusterTest, ATokenIsGoodForOneNode) {
  const JoinToken token = *head_->make_token();
  ASSERT_TRUE(join("node-1", token));
  const auto again = join("node-2", token);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kPermission);
  EXPECT_NE(again.error().what.find("used by node node-1"), std::string::npos)
      << again.error().what;
  EXPECT_TRUE(was_told(Notice::Kind::kRefused, "used by node"));
  EXPECT_EQ(head_->nodes().size(), 1u);
}

TEST_F(ClusterTest, NoNodeTakesTheNameOfTheHeadsOwn) {
  head_.reset();
  options_.own_node = "node-0";
  start_head();
  const auto refused = join("node-0", *head_->make_token());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().next.find("--name"), std::string::npos) << refused.error().next;
  EXPECT_TRUE(head_->nodes().empty());
}

TEST_F(ClusterTest, AMembershipSaysWhichTokenMadeIt) {
  const JoinToken token = *head_->make_token();
  const auto joined = join("node-1", token);
  ASSERT_TRUE(joined) << joined.error().what;
  const auto stored = Membership::load(folder_ / "node-1");
  ASSERT_TRUE(stored) << stored.error().what;
  EXPECT_EQ(stored->joined_by, token.digest());
}

// If the head cannot write, the node does not leave the cluster. It calls again.
TEST_F(ClusterTest, AFullDiskSendsNoNodeAwayForGood) {
  options_.certificate_lifetime = std::chrono::seconds(3600);
  auto membership = join("node-1", *head_->make_token());
  ASSERT_TRUE(membership) << membership.error().what;
  // The signed certificate has not been presented yet, so the head must record the call.
  NodeRecord record = head_->nodes().at(0).record;
  record.next_serial = std::exchange(record.serial, "0");
  ASSERT_TRUE(book_.save(record));
  head_.reset();
  start_head();
  book_.full = true;
  start("node-1", std::move(*membership));
  ASSERT_TRUE(wait_until([&] { return was_told(Notice::Kind::kRefused, "the disk is full"); }));
  book_.full = false;
  EXPECT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
  EXPECT_TRUE(ended_.empty());
}

TEST_F(ClusterTest, ATokenExpires) {
  const JoinToken token = *head_->make_token();
  book_.tokens.at(token.digest()).expires_at = WallTime::now().nanoseconds - 1;
  const auto late = join("node-1", token);
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().what.find("expired"), std::string::npos) << late.error().what;
}

TEST_F(ClusterTest, AForgedTokenIsRefused) {
  JoinToken token = *head_->make_token();
  token.secret[0] = token.secret[0] == 'a' ? 'b' : 'a';
  const auto forged = join("node-1", token);
  ASSERT_FALSE(forged);
  EXPECT_NE(forged.error().what.find("has not made this token"), std::string::npos);
  EXPECT_TRUE(was_told(Notice::Kind::kRefused, "has not made this token"));
}

TEST_F(ClusterTest, NoNodeTakesAnothersNameWhileItIsHeard) {
  add("node-1");
  ASSERT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
  const auto second = join("node-1", *head_->make_token());
  ASSERT_FALSE(second);
  EXPECT_NE(second.error().what.find("is connected"), std::string::npos) << second.error().what;
  for (const std::string name : {"head", "", "../x", "a b"})
    EXPECT_FALSE(join(name, *head_->make_token())) << name;
}

TEST_F(ClusterTest, ARefusedNameLeavesTheTokenGood) {
  const JoinToken token = *head_->make_token();
  EXPECT_FALSE(join("head", token));
  EXPECT_TRUE(join("node-1", token));
}

TEST_F(ClusterTest, NothingIsPromisedThatIsNotOnDisk) {
  const JoinToken token = *head_->make_token();
  book_.full = true;
  EXPECT_FALSE(join("node-1", token));
  EXPECT_FALSE(head_->make_token());
  book_.full = false;
  EXPECT_TRUE(head_->nodes().empty());
  EXPECT_TRUE(join("node-1", token));
}

// ---- leaving
// ----------------------------------------------------------------------------------------

TEST_F(ClusterTest, ARemovedNodeIsToldAndNeverLetInAgain) {
  add("node-1");
  ASSERT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
  ASSERT_TRUE(head_->remove("node-1"));
  ASSERT_TRUE(wait_until([&] { return ended_.contains("node-1"); }));
  EXPECT_NE(ended_["node-1"].what.find("removed"), std::string::npos);

  ended_.clear();
  head_.reset();
  start_head(); // a new head has no memory of the removal except the ledger
  start("node-1", *Membership::load(folder_ / "node-1"));
  ASSERT_TRUE(wait_until([&] { return ended_.contains("node-1"); }));
  EXPECT_TRUE(is("node-1", NodeState::kRemoved));
  EXPECT_EQ(head_->remove("nobody").error().code, ErrorCode::kNotFound);

  add("node-1"); // a new token lets it return
  EXPECT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
}

TEST_F(ClusterTest, AStolenMembershipIsWorthlessAfterJoiningAnew) {
  ASSERT_TRUE(join("node-1", *head_->make_token()));
  const Membership stolen = *Membership::load(folder_ / "node-1");
  ASSERT_TRUE(join("node-1", *head_->make_token()));
  start("node-1", stolen);
  ASSERT_TRUE(wait_until([&] { return ended_.contains("node-1"); }));
  EXPECT_NE(ended_["node-1"].what.find("newer certificate"), std::string::npos);
  EXPECT_FALSE(is("node-1", NodeState::kReady));
}

TEST_F(ClusterTest, ASecondLinkOfANodeEndsTheFirst) {
  add("node-1");
  ASSERT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
  auto first = std::move(agents_["node-1"]);
  start("node-1", *Membership::load(folder_ / "node-1"));
  ASSERT_TRUE(wait_until([&] { return cut_.contains("node-1"); }));
  EXPECT_TRUE(is("node-1", NodeState::kReady));
  EXPECT_EQ(head_->nodes().size(), 1u);
}

// ---- silence and renewal
// ------------------------------------------------------------------------------

TEST_F(ClusterTest, ASilentNodeIsLost) {
  // A node sends its hello and then nothing. Its link is open, but nobody answers.
  const auto membership = join("node-1", *head_->make_token());
  ASSERT_TRUE(membership);
  std::unique_ptr<tls::Link> link;
  const auto call =
      tls::connect(loop_, "127.0.0.1", head_->port(), membership->identity,
                   [&](Result<std::unique_ptr<tls::Link>> made) { link = std::move(*made); });
  ASSERT_TRUE(wait_until([&] { return link != nullptr; }));
  ASSERT_TRUE(link->send(frame_of(NodeHello{})));
  ASSERT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
  const MonotonicTime silent_since = MonotonicTime::now();
  ASSERT_TRUE(wait_until([&] { return is("node-1", NodeState::kLost); }));
  EXPECT_GE(MonotonicTime::now() - silent_since, options_.lost_after / 2);
  EXPECT_TRUE(was_told(Notice::Kind::kLost, "nothing was heard"));
}

TEST_F(ClusterTest, ANodeOfAnotherProtocolIsRefusedWithBothVersions) {
  const auto membership = join("node-1", *head_->make_token());
  ASSERT_TRUE(membership);
  std::unique_ptr<tls::Link> link;
  std::optional<Dismissed> dismissed;
  const auto call =
      tls::connect(loop_, "127.0.0.1", head_->port(), membership->identity,
                   [&](Result<std::unique_ptr<tls::Link>> made) { link = std::move(*made); });
  ASSERT_TRUE(wait_until([&] { return link != nullptr; }));
  link->start({[&](const wire::Frame& frame) { dismissed = *read_frame<Dismissed>(frame); }, {}});
  NodeHello hello;
  hello.protocol = 2;
  ASSERT_TRUE(link->send(frame_of(hello)));
  ASSERT_TRUE(wait_until([&] { return dismissed.has_value(); }));
  EXPECT_EQ(dismissed->what, "node node-1 speaks protocol 2, this program speaks 1");
  EXPECT_FALSE(dismissed->for_good); // the head may be upgraded
  EXPECT_FALSE(is("node-1", NodeState::kReady));
}

TEST_F(ClusterTest, CertificatesAreRenewedOnTheWay) {
  // Less than a third of it and the backdated 300 s: renewed at once.
  options_.certificate_lifetime = std::chrono::seconds(60);
  head_.reset();
  start_head();
  add("node-1");
  const std::string first = Membership::load(folder_ / "node-1")->identity.certificate.serial();
  ASSERT_TRUE(wait_until([&] { return was_told(Notice::Kind::kRenewed); }));
  const std::string second = Membership::load(folder_ / "node-1")->identity.certificate.serial();
  EXPECT_NE(first, second);
  EXPECT_TRUE(cut_.empty()); // the link stayed open
  // The node connects with the new certificate.
  agents_.clear();
  start("node-1", *Membership::load(folder_ / "node-1"));
  ready_.clear();
  EXPECT_TRUE(wait_until([&] { return ready_["node-1"] == 1; }));
}

TEST_F(ClusterTest, WhoHasNoCertificateCanOnlyJoin) {
  std::unique_ptr<tls::Link> link;
  std::optional<Dismissed> dismissed;
  const auto call =
      tls::join(loop_, "127.0.0.1", head_->port(), JoinToken(*head_->make_token()).fingerprint,
                [&](Result<std::unique_ptr<tls::Link>> made) { link = std::move(*made); });
  ASSERT_TRUE(wait_until([&] { return link != nullptr; }));
  link->start({[&](const wire::Frame& frame) { dismissed = *read_frame<Dismissed>(frame); }, {}});
  ASSERT_TRUE(link->send(frame_of(NodeHello{})));
  ASSERT_TRUE(wait_until([&] { return dismissed.has_value(); }));
  EXPECT_NE(dismissed->what.find("can only join"), std::string::npos);
}

// Many strangers finish their handshakes and send nothing. The oldest link gives way.
TEST_F(ClusterTest, StrangersAreBoundedAndKeepNoNodeOut) {
  head_.reset();
  options_.strangers = 4;
  start_head();
  add("node-1");
  ASSERT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
  const std::string fingerprint = JoinToken(*head_->make_token()).fingerprint;
  constexpr int kCalls = 12;
  int closed = 0;
  std::vector<std::unique_ptr<tls::Link>> links;
  for (int i = 0; i < kCalls; ++i) {
    std::unique_ptr<tls::Link> link;
    const auto call =
        tls::join(loop_, "127.0.0.1", head_->port(), fingerprint,
                  [&](Result<std::unique_ptr<tls::Link>> made) { link = std::move(*made); });
    ASSERT_TRUE(wait_until([&] { return link != nullptr; }));
    link->start({{}, [&](const Error&) { ++closed; }});
    links.push_back(std::move(link));
  }
  ASSERT_TRUE(wait_until([&] { return closed >= kCalls - 4; }));
  EXPECT_TRUE(was_told(Notice::Kind::kRefused, "gave way"));
  EXPECT_TRUE(is("node-1", NodeState::kReady));
  EXPECT_TRUE(cut_.empty()) << "the node kept its link";
  add("node-2");
  EXPECT_TRUE(wait_until([&] { return is("node-2", NodeState::kReady); }));
}

// A stolen certificate is an example. Its links cannot use up the head's descriptors either.
TEST_F(ClusterTest, LinksOfOneNodeThatSayNothingAreBounded) {
  const auto membership = join("node-1", *head_->make_token());
  ASSERT_TRUE(membership);
  const size_t most = options_.links_of_node;
  size_t closed = 0;
  std::vector<std::unique_ptr<tls::Link>> links;
  for (size_t i = 0; i < 3 * most; ++i) {
    std::unique_ptr<tls::Link> link;
    const auto call =
        tls::connect(loop_, "127.0.0.1", head_->port(), membership->identity,
                     [&](Result<std::unique_ptr<tls::Link>> made) { link = std::move(*made); });
    ASSERT_TRUE(wait_until([&] { return link != nullptr; }));
    link->start({{}, [&](const Error&) { ++closed; }});
    links.push_back(std::move(link));
  }
  ASSERT_TRUE(wait_until([&] { return closed >= 2 * most; }));
  EXPECT_TRUE(was_told(Notice::Kind::kRefused, "gave way"));
}

TEST_F(ClusterTest, FramesThatAreNoMessagesEndTheirLinkAlone) {
  add("node-1");
  ASSERT_TRUE(wait_until([&] { return is("node-1", NodeState::kReady); }));
  const auto membership = join("node-2", *head_->make_token());
  ASSERT_TRUE(membership);
  for (const std::string body : {"", "[]", "{", "{\"build\": 7}", "\"x\""}) {
    std::unique_ptr<tls::Link> link;
    bool closed = false;
    const auto call =
        tls::connect(loop_, "127.0.0.1", head_->port(), membership->identity,
                     [&](Result<std::unique_ptr<tls::Link>> made) { link = std::move(*made); });
    ASSERT_TRUE(wait_until([&] { return link != nullptr; }));
    link->start({{}, [&](const Error&) { closed = true; }});
    ASSERT_TRUE(link->send({static_cast<uint8_t>(MessageType::kHello), 0, body}));
    EXPECT_TRUE(wait_until([&] { return closed; })) << body;
  }
  EXPECT_TRUE(is("node-1", NodeState::kReady));
}

} // namespace
} // namespace nsa::cluster
