// Measurements of the network. The test plays the nodes.
#include "common/wire/messages.h"
#include "daemon/parts/meeting.h"
#include "daemon/parts/network_probes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::parts {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NetworkProbesTest : public testing::Test {
protected:
  void SetUp() override {
    RemoteNodes::Options remote;
    remote.send = [this](const std::string& node, const wire::Frame& frame) {
      if (auto call = cluster::read_frame<Call>(frame)) calls_[node].push_back(std::move(*call));
      return Status();
    };
    remote.is_wanted = [](const control::AttemptKey&) { return false; };
    nodes_ = std::make_unique<RemoteNodes>(loop_, std::move(remote));
    for (const char* node : {"bee", "cow"})
      nodes_->take(node, frame_of(Message::kHeld, Held{}));
    NetworkProbes::Options options;
    options.node = "ant";
    options.address_of = [](const std::string& node) {
      return node == "bee" ? "10.0.0.7:40122" : "127.0.0.1:40122";
    };
    options.hold_back = [this](const std::string& why) { held_back_.push_back(why); };
    options.take_gpu = [this](const std::string& node) { return gpus_[node]; };
    options.give_back = [this] { ++given_back_; };
    options.measured = [this](const wire::NetworkProbe& probe) { measured_.push_back(probe); };
    options.run_end = [this](const ProbeOrder& order, const UniqueFd& store) {
      own_ = order;
      own_has_store_ = bool(store);
      return own_end_;
    };
    probes_ = std::make_unique<NetworkProbes>(*nodes_, workers_, std::move(options));
  }
  // Answers the newest call to a node.
  void answer(const std::string& node, nlohmann::json body) {
    nodes_->take(node, frame_of(Message::kAnswer,
                                Answer{calls_[node].back().id, true, 0, "", "", std::move(body)}));
  }
  void refuse(const std::string& node, const std::string& why) {
    nodes_->take(node, frame_of(Message::kAnswer,
                                Answer{calls_[node].back().id, false,
                                       static_cast<int>(ErrorCode::kSystem), why, "", nullptr}));
  }
  bool ends(const std::string& node) {
    const MonotonicTime end = MonotonicTime::now() + std::chrono::seconds(20);
    while (probes_->last(node)->state == wire::WorkState::kRunning && MonotonicTime::now() < end)
      (void)loop_.run_for(std::chrono::milliseconds(5));
    return probes_->last(node)->state != wire::WorkState::kRunning;
  }

  net::EventLoop loop_;
  net::Offload workers_{loop_};
  std::unique_ptr<RemoteNodes> nodes_;
  std::map<std::string, std::vector<Call>> calls_;
  std::vector<std::string> held_back_;
  std::vector<wire::NetworkProbe> measured_;
  Result<wire::NetworkFigures> own_end_ = wire::NetworkFigures{0.001, 1e9};
  std::map<std::string, std::string> gpus_; // the free GPUs: one for each node
  int given_back_ = 0;
  ProbeOrder own_;
  bool own_has_store_ = false;
  std::unique_ptr<NetworkProbes> probes_;
};

TEST_F(NetworkProbesTest, TheHeadsOwnEndHasTheStore) {
  const auto started = probes_->start("bee", {"ant"});
  ASSERT_TRUE(started) << started.error().what;
  ASSERT_EQ(calls_["bee"].size(), 1u);
  EXPECT_EQ(calls_["bee"][0].what, CallKind::kProbe);
  const auto order = wire::body_as<ProbeOrder>(calls_["bee"][0].body);
  ASSERT_TRUE(order);
  EXPECT_EQ(order->rank, 1);
  EXPECT_THAT(order->meeting, HasSubstr("tcp:HEAD:"));
  answer("bee", wire::NetworkFigures{0.5, 1});
  ASSERT_TRUE(ends("bee"));
  EXPECT_EQ(own_.rank, 0);
  EXPECT_TRUE(own_has_store_);
  EXPECT_EQ(own_.secret, order->secret);
  ASSERT_EQ(measured_.size(), 1u);
  EXPECT_EQ(measured_[0].node, "bee") << "as it was asked for";
  EXPECT_EQ(measured_[0].figures.bytes_per_second, 1e9) << "those of rank 0";
  EXPECT_THAT(held_back_, ElementsAre(HasSubstr("between bee and ant"), ""));
}

TEST_F(NetworkProbesTest, BetweenTwoOthersTheFirstBindsThePort) {
  ASSERT_TRUE(probes_->start("bee", {"cow"}));
  ASSERT_EQ(calls_["bee"].size(), 1u);
  EXPECT_EQ(calls_["bee"][0].what, CallKind::kBind);
  EXPECT_TRUE(calls_["cow"].empty());
  answer("bee", Prepared{4711});
  ASSERT_EQ(calls_["bee"].size(), 2u);
  ASSERT_EQ(calls_["cow"].size(), 1u);
  EXPECT_EQ(wire::body_as<ProbeOrder>(calls_["bee"][1].body)->meeting, "tcp:127.0.0.1:4711");
  EXPECT_EQ(wire::body_as<ProbeOrder>(calls_["cow"][0].body)->meeting, "tcp:10.0.0.7:4711");
  EXPECT_EQ(probes_->start("bee", {"cow"})->state, wire::WorkState::kRunning) << "the same again";
  const auto other = probes_->start("ant", {"cow"});
  ASSERT_FALSE(other) << "two would disturb each other";
  EXPECT_EQ(other.error().code, ErrorCode::kConflict);
  answer("bee", wire::NetworkFigures{0.002, 5e8});
  answer("cow", wire::NetworkFigures{0.002, 6e8});
  ASSERT_EQ(measured_.size(), 1u);
  EXPECT_EQ(measured_[0].figures.bytes_per_second, 5e8);
}

TEST_F(NetworkProbesTest, NodesWithFreeGpusAreMeasuredBetweenThem) {
  gpus_ = {{"ant", "GPU-a"}, {"bee", "GPU-b"}};
  ASSERT_TRUE(probes_->start("bee", {"ant", false, "eth1"}));
  auto order = wire::body_as<ProbeOrder>(calls_["bee"][0].body);
  ASSERT_TRUE(order);
  EXPECT_EQ(order->gpu, "GPU-b");
  EXPECT_EQ(order->interface, "eth1");
  answer("bee", wire::NetworkFigures{0.5, 1});
  ASSERT_TRUE(ends("bee"));
  EXPECT_EQ(own_.gpu, "GPU-a");
  EXPECT_EQ(measured_.back().figures.by, wire::MeasuredBy::kNccl);
  EXPECT_EQ(given_back_, 1);

  ASSERT_TRUE(probes_->start("bee", {"ant", true}));
  EXPECT_EQ(wire::body_as<ProbeOrder>(calls_["bee"].back().body)->gpu, "") << "as it was asked";
  answer("bee", wire::NetworkFigures{0.5, 1});
  ASSERT_TRUE(ends("bee"));
  EXPECT_EQ(own_.gpu, "");
  EXPECT_EQ(measured_.back().figures.by, wire::MeasuredBy::kTcp);

  gpus_.erase("bee"); // another program uses its GPU
  ASSERT_TRUE(probes_->start("bee", {"ant"}));
  EXPECT_EQ(wire::body_as<ProbeOrder>(calls_["bee"].back().body)->gpu, "");
  refuse("bee", "no");
  ASSERT_TRUE(ends("bee"));
  EXPECT_EQ(own_.gpu, "") << "one GPU is not enough";
  EXPECT_EQ(given_back_, 3) << "after a failure, too";
}

TEST_F(NetworkProbesTest, TheNodeThatFailsIsNamedAndNothingIsStored) {
  ASSERT_TRUE(probes_->start("bee", {"cow"}));
  answer("bee", Prepared{4711});
  refuse("cow", "connecting to rank 0: No route to host");
  refuse("bee", "a peer has not connected in time");
  const auto ended = probes_->last("bee");
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->state, wire::WorkState::kFailed);
  EXPECT_THAT(ended->problem, HasSubstr("node cow"));
  EXPECT_THAT(ended->problem, HasSubstr("No route to host"));
  EXPECT_FALSE(ended->next.empty());
  EXPECT_TRUE(measured_.empty());
  EXPECT_EQ(held_back_.back(), "") << "runs may start again";
}

TEST_F(NetworkProbesTest, ANodeThatIsLostEndsTheMeasurement) {
  ASSERT_TRUE(probes_->start("ant", {"bee"}));
  nodes_->on_lost("bee");
  ASSERT_TRUE(ends("ant"));
  EXPECT_THAT(probes_->last("ant")->problem, HasSubstr("bee is not heard"));
  EXPECT_FALSE(probes_->last("cow"));
  ASSERT_TRUE(probes_->start("ant", {"bee"})) << "nothing is left of the one before";
  EXPECT_EQ(probes_->last("ant")->state, wire::WorkState::kRunning)
      << "this node's own end is on its way, and the other's has failed";
  EXPECT_TRUE(ends("ant"));
}

TEST(Meeting, EachNodeReachesRank0ByItsOwnName) {
  EXPECT_EQ(meeting_at_home(7), "tcp:127.0.0.1:7");
  EXPECT_EQ(meeting_elsewhere("", 7), "tcp:HEAD:7");
  EXPECT_EQ(meeting_elsewhere("127.0.0.1:9", 7), "tcp:HEAD:7");
  EXPECT_EQ(meeting_elsewhere("[fd00::2]:9", 7), "tcp:[fd00::2]:7");
  EXPECT_EQ(with_name_of_head("tcp:HEAD:7", "ant"), "tcp:ant:7");
  EXPECT_EQ(with_name_of_head("tcp:bee:7", "ant"), "tcp:bee:7");
}

} // namespace
} // namespace nsa::parts
