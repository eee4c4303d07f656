// Where the ranks of a run on several nodes go, and what each node's shim is told.
#include "daemon/commands/slots.h"
#include "daemon/parts/messages.h"
#include "daemon/parts/nodes_launcher.h"
#include "daemon/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::parts {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SlotsOnNodes, TheHeadsNodeIsFirstAndOthersFollowByName) {
  control::SlotPool pool(2);
  const std::map<std::string, int> others = {{"bee", 2}, {"cat", 4}};
  const auto slots = pool.acquire_on_nodes("a", {2, 2, 4}, others);
  ASSERT_TRUE(slots) << slots.error().what;
  EXPECT_THAT(*slots, ElementsAre("cpu0", "cpu1", "bee/cpu0", "bee/cpu1"));
  EXPECT_EQ(pool.used(spec::Device::kCpu), 2) << "of this node";
  EXPECT_EQ(pool.used(spec::Device::kCuda), 0);

  const auto none = pool.acquire_on_nodes("b", {2, 1, 2}, others);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().what, HasSubstr("of this node"));

  pool.release("a");
  EXPECT_TRUE(pool.acquire_on_nodes("b", {3, 2, 6}, others));
}

TEST(SlotsOnNodes, ANodeWithTooFewFreeSlotsIsPassedOver) {
  control::SlotPool pool(4);
  ASSERT_TRUE(pool.acquire_on_nodes("a", {2, 1, 2}, {{"bee", 1}}));
  const auto waits = pool.acquire_on_nodes("b", {2, 1, 2}, {{"bee", 1}});
  ASSERT_FALSE(waits);
  EXPECT_THAT(waits.error().what, HasSubstr("1 of them are ready"));
  EXPECT_EQ(pool.used(spec::Device::kCpu), 1) << "all or nothing";
  const auto slots = pool.acquire_on_nodes("b", {2, 1, 2}, {{"bee", 1}, {"cat", 1}});
  ASSERT_TRUE(slots);
  EXPECT_THAT(*slots, ElementsAre("cpu1", "cat/cpu0"));
}

TEST(SlotsOnNodes, WithoutANumberOfNodesTheFewestAreWaitedFor) {
  control::SlotPool pool(2);
  const std::map<std::string, int> others = {{"bee", 2}, {"cat", 4}};
  const auto slots = pool.acquire_on_nodes("a", {1, 0, 3}, others);
  ASSERT_TRUE(slots) << slots.error().what;
  EXPECT_THAT(*slots, ElementsAre("cpu0", "cpu1", "bee/cpu0"));
  pool.release("a");
  // Three slots of cat are free, but six ranks need only two whole nodes.
  ASSERT_TRUE(pool.acquire_on_nodes("b", {2, 1, 2}, {{"cat", 4}}));
  const auto waits = pool.acquire_on_nodes("c", {1, 0, 6}, others);
  ASSERT_FALSE(waits);
  EXPECT_THAT(waits.error().what, HasSubstr("waits for 6 CPU slots on 2 nodes"));
  pool.release("b");
  const auto whole = pool.acquire_on_nodes("c", {1, 0, 6}, others);
  ASSERT_TRUE(whole) << whole.error().what;
  EXPECT_EQ(state::parts_of(*whole, 6).size(), 2u);
  const auto never = pool.acquire_on_nodes("d", {1, 0, 9}, others);
  ASSERT_FALSE(never);
  EXPECT_THAT(never.error().what, HasSubstr("have too few"));
}

TEST(PlanOfPart, HasItsRanksAndTheContractOfTorchrun) {
  plan::AttemptInput input;
  input.run_id = "a";
  input.spec.parallel.ranks = 3;
  input.spec.parallel.device = spec::Device::kCpu;
  input.run_folder = "/runs/a";
  input.worker = "/bin/nsa-worker";
  input.token = "t";
  input.slots = {"cpu0", "cpu1", "bee/cpu0"};
  const auto whole = plan::make_launch_plan(input);
  ASSERT_TRUE(whole) << whole.error().what;
  const std::vector<state::Part> parts = state::parts_of(input.slots, 3);
  ASSERT_EQ(parts.size(), 2u);
  const wire::LaunchPlan here = plan_of_part(*whole, parts, 0, "tcp:127.0.0.1:7");
  const wire::LaunchPlan there = plan_of_part(*whole, parts, 1, "tcp:HEAD:7");
  ASSERT_EQ(here.ranks.size(), 2u);
  ASSERT_EQ(there.ranks.size(), 1u);
  EXPECT_EQ(here.rendezvous, "tcp:127.0.0.1:7");
  const wire::RankLaunch& last = there.ranks[0];
  EXPECT_EQ(last.rank, 2);
  EXPECT_EQ(last.environment.at("RANK"), "2");
  EXPECT_EQ(last.environment.at("WORLD_SIZE"), "3");
  EXPECT_EQ(last.environment.at("LOCAL_RANK"), "0");
  EXPECT_EQ(last.environment.at("LOCAL_WORLD_SIZE"), "1");
  EXPECT_EQ(last.environment.at("GROUP_RANK"), "1");
  EXPECT_EQ(last.environment.at("GROUP_WORLD_SIZE"), "2");
  const auto at = std::find(last.arguments.begin(), last.arguments.end(), "--rendezvous");
  ASSERT_NE(at, last.arguments.end());
  EXPECT_EQ(*(at + 1), "tcp:HEAD:7");
  EXPECT_EQ(here.ranks[1].environment.at("LOCAL_RANK"), "1");
  EXPECT_EQ(here.token, there.token);
}

TEST(StreamFrame, HasItsNumberBeforeTheBytes) {
  const wire::Frame frame = stream_frame(Message::kBytes, 77, "abc");
  const auto read = read_stream_frame(frame);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->stream, 77u);
  EXPECT_EQ(read->bytes, "abc");
  EXPECT_FALSE(read_stream_frame({frame.type, 0, "short"}));
}

} // namespace
} // namespace nsa::parts
