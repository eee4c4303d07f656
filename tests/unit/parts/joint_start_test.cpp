// Where the ranks of a run on several nodes start, and what each node's shim is told.
#include "daemon/commands/slots.h"
#include "daemon/parts/lent_gpus.h"
#include "daemon/parts/messages.h"
#include "daemon/parts/node_gpus.h"
#include "daemon/parts/nodes_launcher.h"
#include "daemon/plan/plan.h"
#include "tests/support/temporary_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::parts {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
constexpr auto kCpu = spec::Device::kCpu, kCuda = spec::Device::kCuda;

gpu::Gpu gpu_of(int index, const std::string& uuid) {
  gpu::Gpu gpu;
  gpu.index = index;
  gpu.uuid = uuid;
  return gpu;
}

// Two GPUs of this node, with locks in the test's folder.
struct GpusHere {
  test::TemporaryFolder folder;
  control::SlotPool pool{2};
  GpusHere() {
    auto locks = gpu::HostLocks::open(folder.path() / "locks", "/state",
                                      [](const gpu::Holder&) { return false; });
    if (locks) pool.use_gpus(std::move(*locks));
    pool.set_gpus({"1", {gpu_of(0, "GPU-a"), gpu_of(1, "GPU-b")}, {}});
  }
};

TEST(SlotsOnNodes, TheHeadsNodeIsFirstAndOthersFollowByName) {
  control::SlotPool pool(2);
  const std::map<std::string, control::NodePlaces> others = {{"bee", {2, {}}}, {"cat", {4, {}}}};
  const auto slots = pool.acquire_on_nodes("a", kCpu, {2, 2, 4}, others);
  ASSERT_TRUE(slots) << slots.error().what;
  EXPECT_THAT(*slots, ElementsAre("cpu0", "cpu1", "bee/cpu0", "bee/cpu1"));
  EXPECT_EQ(pool.used(spec::Device::kCpu), 2) << "of this node";
  EXPECT_EQ(pool.used(spec::Device::kCuda), 0);

  const auto none = pool.acquire_on_nodes("b", kCpu, {2, 1, 2}, others);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().what, HasSubstr("of this node"));

  pool.release("a");
  EXPECT_TRUE(pool.acquire_on_nodes("b", kCpu, {3, 2, 6}, others));
}

TEST(SlotsOnNodes, ANodeWithTooFewFreeSlotsIsPassedOver) {
  control::SlotPool pool(4);
  ASSERT_TRUE(pool.acquire_on_nodes("a", kCpu, {2, 1, 2}, {{"bee", {1, {}}}}));
  const auto waits = pool.acquire_on_nodes("b", kCpu, {2, 1, 2}, {{"bee", {1, {}}}});
  ASSERT_FALSE(waits);
  EXPECT_THAT(waits.error().what, HasSubstr("1 of them are ready"));
  EXPECT_EQ(pool.used(spec::Device::kCpu), 1) << "all or nothing";
  const auto slots =
      pool.acquire_on_nodes("b", kCpu, {2, 1, 2}, {{"bee", {1, {}}}, {"cat", {1, {}}}});
  ASSERT_TRUE(slots);
  EXPECT_THAT(*slots, ElementsAre("cpu1", "cat/cpu0"));
}

TEST(SlotsOnNodes, WithoutANumberOfNodesTheFewestAreWaitedFor) {
  control::SlotPool pool(2);
  const std::map<std::string, control::NodePlaces> others = {{"bee", {2, {}}}, {"cat", {4, {}}}};
  const auto slots = pool.acquire_on_nodes("a", kCpu, {1, 0, 3}, others);
  ASSERT_TRUE(slots) << slots.error().what;
  EXPECT_THAT(*slots, ElementsAre("cpu0", "cpu1", "bee/cpu0"));
  pool.release("a");
  // Three slots of cat are free, but six ranks need only two whole nodes.
  ASSERT_TRUE(pool.acquire_on_nodes("b", kCpu, {2, 1, 2}, {{"cat", {4, {}}}}));
  const auto waits = pool.acquire_on_nodes("c", kCpu, {1, 0, 6}, others);
  ASSERT_FALSE(waits);
  EXPECT_THAT(waits.error().what, HasSubstr("waits for 6 CPU slots on 2 nodes"));
  pool.release("b");
  const auto whole = pool.acquire_on_nodes("c", kCpu, {1, 0, 6}, others);
  ASSERT_TRUE(whole) << whole.error().what;
  EXPECT_EQ(state::parts_of(*whole, 6).size(), 2u);
  const auto never = pool.acquire_on_nodes("d", kCpu, {1, 0, 9}, others);
  ASSERT_FALSE(never);
  EXPECT_THAT(never.error().what, HasSubstr("have too few"));
}

TEST(SlotsOnNodes, GpusAreTakenByNodeAndThoseThatNobodyGetsArePassedOver) {
  GpusHere here;
  const std::map<std::string, control::NodePlaces> others = {
      {"bee", {8, {{"GPU-c", "used by process 7"}, {"GPU-d", ""}}}}, {"cat", {8, {{"GPU-e", ""}}}}};
  here.pool.set_quarantine({{"cat/GPU-e", "Xid 79"}});
  const auto one_each = here.pool.acquire_on_nodes("a", kCuda, {2, 1, 2}, others);
  ASSERT_TRUE(one_each) << one_each.error().what;
  EXPECT_THAT(*one_each, ElementsAre("GPU-a", "bee/GPU-d"));
  EXPECT_EQ(here.pool.used(kCuda), 1) << "of this node";
  EXPECT_EQ(here.pool.owner_of("bee/GPU-d"), "a");
  const auto waits = here.pool.acquire_on_nodes("b", kCuda, {2, 1, 2}, others);
  ASSERT_FALSE(waits);
  EXPECT_THAT(waits.error().what, HasSubstr("1 free GPU each: 1 of them are ready"));
  here.pool.release("a");
  const auto alone = here.pool.acquire_on_nodes("b", kCuda, {1, 0, 3}, others);
  ASSERT_TRUE(alone) << alone.error().what;
  EXPECT_THAT(*alone, ElementsAre("GPU-a", "GPU-b", "bee/GPU-d"));
}

TEST(SlotsOnNodes, AGpuThatAnotherNsadOfThisHostHasIsWaitedForWhole) {
  GpusHere here;
  auto other = gpu::HostLocks::open(here.folder.path() / "locks", "/other",
                                    [](const gpu::Holder&) { return true; });
  ASSERT_TRUE(other);
  ASSERT_TRUE(other->acquire("GPU-b", "theirs"));
  const std::map<std::string, control::NodePlaces> others = {{"bee", {0, {{"GPU-c", ""}}}}};
  const auto waits = here.pool.acquire_on_nodes("a", kCuda, {1, 0, 3}, others);
  ASSERT_FALSE(waits);
  EXPECT_THAT(waits.error().what, HasSubstr("in use by run theirs"));
  EXPECT_TRUE(other->acquire("GPU-a", "theirs")) << "its lock was kept";
}

TEST(Lease, IsOfNamedGpusAllOrNothing) {
  GpusHere here;
  EXPECT_TRUE(here.pool.acquire_gpus("a", {"GPU-b"}));
  EXPECT_TRUE(here.pool.acquire_gpus("a", {"GPU-b"})) << "again, by the next attempt";
  const auto taken = here.pool.acquire_gpus("b", {"GPU-a", "GPU-b"});
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().what, HasSubstr("in use by run a"));
  EXPECT_EQ(here.pool.owner_of("GPU-a"), "");
  EXPECT_THAT(here.pool.acquire_gpus("b", {"GPU-z"}).error().what, HasSubstr("is not there"));
}

TEST(PlanOfPart, ShowsItsRanksTheGpusOfTheirNodeAndKeepsWhatTogglesAskFor) {
  plan::AttemptInput input;
  input.run_id = "a";
  input.spec.parallel = {};
  input.spec.parallel.ranks = 3;
  input.spec.parallel.nodes = 2;
  input.spec.parallel.device = kCuda;
  input.spec.toggles["nccl.nvls"] = "0";
  input.node_environment = {{"PATH", "/head/bin"}, {"NCCL_SOCKET_IFNAME", "eth7"}};
  input.run_folder = "/runs/a";
  input.worker = "/bin/nsa-worker";
  input.slots = {"GPU-a", "bee/GPU-c", "bee/GPU-d"};
  const auto whole = plan::make_launch_plan(input);
  ASSERT_TRUE(whole) << whole.error().what;
  const auto parts = state::parts_of(input.slots, 3);
  const wire::LaunchPlan here = plan_of_part(*whole, parts, 0, "tcp:127.0.0.1:7");
  EXPECT_THAT(gpus_of(here), ElementsAre("GPU-a"));
  EXPECT_EQ(here.ranks[0].environment.at("NCCL_SOCKET_IFNAME"), "eth7");
  wire::LaunchPlan there = plan_of_part(*whole, parts, 1, "tcp:HEAD:7");
  EXPECT_THAT(gpus_of(there), ElementsAre("GPU-c", "GPU-d"));
  leave_out_node_variables(there, input.spec);
  const auto& environment = there.ranks[1].environment;
  EXPECT_EQ(environment.count("PATH"), 0u);
  EXPECT_EQ(environment.count("NCCL_SOCKET_IFNAME"), 0u) << "the other node's has its own name";
  EXPECT_EQ(environment.at("NCCL_NVLS_ENABLE"), "0");
  EXPECT_EQ(environment.at("LOCAL_RANK"), "1");
}

TEST(GpusOfNodes, TellPlacesReadingsAndErrorsOfTheDriver) {
  std::vector<std::pair<std::string, uint64_t>> xids;
  GpusOfNodes nodes(
      [&](const std::string& slot, uint64_t number) { xids.emplace_back(slot, number); });
  NodeGpus told;
  told.list.resize(3);
  told.list[0].gpu = gpu_of(0, "GPU-c");
  told.list[0].gpu.temperature_celsius = 61.5;
  told.list[0].xids = {63};
  told.list[1].gpu = gpu_of(1, "GPU-d");
  told.list[1].state = wire::GpuStatus::kForeign;
  told.list[1].why = "used by process 7";
  told.list[2].gpu = gpu_of(2, "GPU-e");
  told.list[2].state = wire::GpuStatus::kKeptOut;
  told.new_xids = {{"GPU-c", 63}};
  nodes.take("bee", frame_of(Message::kGpus, told));
  EXPECT_THAT(xids, ElementsAre(std::pair<std::string, uint64_t>("bee/GPU-c", 63)));
  EXPECT_THAT(nodes.places("bee"),
              ElementsAre(std::pair<std::string, std::string>("GPU-c", ""),
                          std::pair<std::string, std::string>("GPU-d", "used by process 7")));
  const auto of_ranks = nodes.of_ranks({"GPU-a", "bee/GPU-c"});
  ASSERT_EQ(of_ranks.size(), 1u);
  EXPECT_EQ(of_ranks[0].rank, 1);
  EXPECT_EQ(of_ranks[0].gpu.temperature_celsius, 61.5);
  EXPECT_FALSE(of_ranks[0].gpu.power_watts);
  EXPECT_THAT(of_ranks[0].xids, ElementsAre(63u));
  const auto views =
      nodes.views([](const std::string& slot) { return slot == "bee/GPU-c" ? "r" : ""; });
  ASSERT_EQ(views.size(), 3u);
  EXPECT_EQ(views[0].state, wire::GpuStatus::kUsed);
  EXPECT_EQ(views[0].node, "bee");
  EXPECT_EQ(views[1].state, wire::GpuStatus::kForeign);
  nodes.take("cat", {static_cast<uint8_t>(Message::kGpus), 0, "{\"list\":[{}]}"});
  EXPECT_TRUE(nodes.places("cat").empty()) << "what cannot be read says nothing";
  nodes.forget("bee");
  EXPECT_TRUE(nodes.places("bee").empty());
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
