// The nodes of an nsad with a real ledger, and real handshakes on the loopback interface.
#include "daemon/cluster/agent.h"
#include "daemon/nodes/cluster_nodes.h"
#include "daemon/state/command.h"

#include <algorithm>
#include <filesystem>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace nsa::control {
namespace {

// These tests have no runs.
class NoRuns final : public Projection, public Dispatch {
public:
  void project(const state::State&, const state::Event&, WallTime, store::Batch&) override {}
  void project(const state::Note&) override {}
  void add_rows(const state::State&, const std::set<RunId>&, store::Batch&) override {}
  void carry_out(const state::Command&) override {}
  void acknowledge(const AttemptKey&, uint64_t) override {}
};

class NodesTest : public testing::Test {
protected:
  static constexpr Duration kLimit = std::chrono::seconds(20);

  void SetUp() override {
    std::string pattern = testing::TempDir() + "nsa-nodes-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    cluster_.address = "127.0.0.1";
    cluster_.port = 0;
    start();
  }
  void TearDown() override {
    agent_.reset();
    stop();
    std::filesystem::remove_all(folder_);
  }

  // Opens the ledger first, as nsad does.
  void start() {
    auto ledger = store::Ledger::open({folder_, 1 << 20}, WallTime{1'000});
    ASSERT_TRUE(ledger) << ledger.error().what;
    ledger_ = std::make_unique<store::Ledger>(std::move(*ledger));
    ASSERT_TRUE(ledger_->note_node("host", "boot", "1", WallTime{7}));
    runs_ = std::make_unique<RunLoop>(clock_, *ledger_);
    runs_->attach(static_cast<Projection&>(no_runs_));
    runs_->attach(static_cast<Dispatch&>(no_runs_));
    runs_->set_watcher([](const Committed&) {});
    quarantine_ = std::make_unique<GpuQuarantine>(
        clock_, *runs_, *ledger_,
        [this](const GpuQuarantine::Entries& entries) { put_away_ = entries.size(); });
    ASSERT_TRUE(quarantine_->start());
    nodes_ = std::make_unique<ClusterNodes>(
        ClusterNodes::Tools{loop_, clock_, *runs_, *ledger_, *quarantine_},
        ClusterNodes::Options{cluster_, folder_.string(), "host",
                              [this](const std::string& node) { drained_.push_back(node); },
                              [] { return two_gpus(); }});
    ASSERT_TRUE(nodes_->start());
  }
  void stop() {
    nodes_.reset();
    quarantine_.reset();
    runs_.reset();
    ledger_.reset();
  }

  static std::vector<wire::GpuView> two_gpus() {
    std::vector<wire::GpuView> gpus(2);
    for (int i = 0; i < 2; ++i) {
      gpus[static_cast<size_t>(i)].index = i;
      gpus[static_cast<size_t>(i)].uuid = "GPU-" + std::to_string(10 + i);
      gpus[static_cast<size_t>(i)].name = "a GPU";
    }
    return gpus;
  }
  wire::NodeView view(const std::string& name) {
    for (const wire::NodeView& node : nodes_->list())
      if (node.name == name) return node;
    return {};
  }
  Result<cluster::Membership> join(const std::string& name, const std::string& token) {
    std::optional<Result<cluster::Membership>> result;
    const auto parsed = cluster::JoinToken::parse(token);
    if (!parsed) return fail(parsed.error());
    const auto joining = cluster::join_cluster(
        loop_, *cluster::HeadAddress::parse(view("host").address), *parsed, name, folder_ / name,
        [&](Result<cluster::Membership> made) { result = std::move(made); });
    if (!wait_until([&] { return result.has_value(); }))
      return fail(ErrorCode::kInternal, "nobody answered");
    return std::move(*result);
  }
  void run_agent(cluster::Membership membership) {
    cluster::Agent::Options options;
    options.folder = folder_ / membership.node;
    options.facts.processors = 3;
    options.facts.cpu_slots = 2;
    options.first_pause = std::chrono::milliseconds(5);
    agent_ = std::make_unique<cluster::Agent>(loop_, std::move(membership), options,
                                              cluster::Agent::Events{});
  }
  bool wait_until(const std::function<bool()>& holds) {
    const MonotonicTime end = MonotonicTime::now() + kLimit;
    while (!holds() && MonotonicTime::now() < end)
      loop_.run_for(std::chrono::milliseconds(5));
    return holds();
  }
  // Returns the rows of the audit with this verb, as "result why".
  std::vector<store::AuditRow> audit(const std::string& verb) {
    auto rows = ledger_->audit("", {}, 10'000);
    EXPECT_TRUE(rows);
    std::erase_if(*rows, [&](const store::AuditRow& row) { return row.verb != verb; });
    return *rows;
  }

  net::EventLoop loop_;
  SystemClock clock_{loop_};
  std::filesystem::path folder_;
  spec::NodeClusterSection cluster_;
  std::unique_ptr<store::Ledger> ledger_;
  NoRuns no_runs_;
  std::unique_ptr<RunLoop> runs_;
  std::unique_ptr<GpuQuarantine> quarantine_;
  size_t put_away_ = 0;
  std::unique_ptr<ClusterNodes> nodes_;
  std::unique_ptr<cluster::Agent> agent_;
  std::vector<std::string> drained_;
  api::Caller ann_{1000, 1000, 42, "ann", true};
};

TEST_F(NodesTest, ANodeJoinsByATokenAndIsKnownAfterARestart) {
  const auto token = nodes_->make_token(ann_);
  ASSERT_TRUE(token) << token.error().what;
  EXPECT_EQ(token->head, view("host").address);
  auto membership = join("node-1", token->token);
  ASSERT_TRUE(membership) << membership.error().what;
  EXPECT_EQ(view("node-1").state, wire::NodeStatus::kLost) << "it has joined, and not called yet";
  run_agent(*membership);
  ASSERT_TRUE(wait_until([&] { return view("node-1").state == wire::NodeStatus::kReady; }));
  EXPECT_EQ(view("node-1").processors, 3);
  EXPECT_EQ(view("host").role, wire::NodeRole::kHead);

  const auto asked = audit("node-token"), joined = audit("node-join");
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].user, "ann");
  EXPECT_EQ(asked[0].result, wire::RequestResult::kDone);
  ASSERT_EQ(joined.size(), 1u);
  EXPECT_EQ(joined[0].run, "node-1");
  EXPECT_EQ(joined[0].uid, -1) << "whoever is on the network has no uid here";

  agent_.reset();
  cluster_.port = cluster::HeadAddress::parse(view("host").address)->port;
  stop();
  start();
  EXPECT_EQ(view("node-1").state, wire::NodeStatus::kLost);
  run_agent(*membership);
  EXPECT_TRUE(wait_until([&] { return view("node-1").state == wire::NodeStatus::kReady; }));
}

TEST_F(NodesTest, AUsedTokenIsRefusedAndAuditedAlsoAfterARestart) {
  const auto token = nodes_->make_token(ann_);
  ASSERT_TRUE(join("node-1", token->token));
  stop();
  start();
  const auto again = join("node-2", token->token);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::kPermission);
  ASSERT_TRUE(wait_until([&] { return !audit("node-call").empty(); }));
  const store::AuditRow row = audit("node-call").front();
  EXPECT_EQ(row.result, wire::RequestResult::kRefused);
  EXPECT_NE(row.why.find("used by node node-1"), std::string::npos) << row.why;
  EXPECT_EQ(row.user.find("127.0.0.1:"), 0u) << row.user;
}

TEST_F(NodesTest, ARemovedNodeStaysRemovedAndMayJoinAgain) {
  auto membership = join("node-1", nodes_->make_token(ann_)->token);
  ASSERT_TRUE(membership);
  ASSERT_TRUE(nodes_->remove("node-1", ann_));
  EXPECT_EQ(audit("node-remove").back().run, "node-1");
  // The same port after the restart.
  cluster_.port = cluster::HeadAddress::parse(view("host").address)->port;
  stop();
  start();
  EXPECT_EQ(view("node-1").state, wire::NodeStatus::kRemoved);
  EXPECT_EQ(nodes_->remove("nobody", ann_).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(audit("node-remove").back().result, wire::RequestResult::kRefused);
  EXPECT_EQ(nodes_->remove("host", ann_).error().code, ErrorCode::kConflict);
  run_agent(*membership);
  EXPECT_TRUE(wait_until([&] { return !audit("node-call").empty(); }));
  agent_.reset();
  EXPECT_TRUE(join("node-1", nodes_->make_token(ann_)->token));
  EXPECT_EQ(view("node-1").state, wire::NodeStatus::kLost);
}

TEST_F(NodesTest, ADrainedNodeStaysDrainedOverARestart) {
  EXPECT_TRUE(drained_.empty());
  ASSERT_TRUE(nodes_->set_drained("host", true, ann_));
  EXPECT_EQ(drained_, std::vector<std::string>{"host"});
  EXPECT_EQ(view("host").state, wire::NodeStatus::kDrained);
  EXPECT_EQ(audit("node-drain").size(), 1u);
  stop();
  drained_.clear();
  start();
  EXPECT_EQ(drained_, std::vector<std::string>{"host"});
  ASSERT_TRUE(nodes_->set_drained("host", false, ann_));
  EXPECT_EQ(drained_.back(), "");
  EXPECT_EQ(view("host").state, wire::NodeStatus::kReady);
}

TEST_F(NodesTest, ADrainedAgentGetsNoRuns) {
  auto membership = join("node-1", nodes_->make_token(ann_)->token);
  ASSERT_TRUE(membership);
  run_agent(*membership);
  ASSERT_TRUE(wait_until([&] { return nodes_->cpu_slots().count("node-1") == 1; }));
  ASSERT_TRUE(nodes_->set_drained("node-1", true, ann_));
  EXPECT_TRUE(nodes_->cpu_slots().empty());
  EXPECT_EQ(view("node-1").state, wire::NodeStatus::kDrained);
  EXPECT_TRUE(drained_.empty()) << "runs may start on this node";
  ASSERT_TRUE(nodes_->set_drained("node-1", false, ann_));
  EXPECT_EQ(nodes_->cpu_slots().at("node-1"), 2);
  EXPECT_EQ(audit("node-drain").size(), 1u);
  EXPECT_EQ(audit("node-undrain").size(), 1u);
  EXPECT_EQ(nodes_->set_drained("nobody", true, ann_).error().code, ErrorCode::kNotFound);
}

// A node that joins again with a new token is the same node.
TEST_F(NodesTest, ANodeStaysDrainedWhenItJoinsAgain) {
  ASSERT_TRUE(join("node-1", nodes_->make_token(ann_)->token));
  ASSERT_TRUE(nodes_->set_drained("node-1", true, ann_));
  ASSERT_TRUE(join("node-1", nodes_->make_token(ann_)->token));
  stop();
  start();
  EXPECT_NE(view("node-1").drained_at, 0);
}

TEST_F(NodesTest, WhoIsNoHeadMakesNoToken) {
  stop();
  cluster_.address.clear();
  start();
  const auto token = nodes_->make_token(ann_);
  ASSERT_FALSE(token);
  EXPECT_NE(token.error().next.find("[cluster]"), std::string::npos) << token.error().next;
  EXPECT_EQ(view("host").role, wire::NodeRole::kSingle);
  EXPECT_EQ(view("host").gpus, (std::vector<std::string>{"a GPU", "a GPU"}));
}

TEST_F(NodesTest, ATakenPortIsSaidAndNotTheEnd) {
  cluster_.port = cluster::HeadAddress::parse(view("host").address)->port;
  const std::filesystem::path first = folder_;
  store::Ledger* const kept = ledger_.release();
  ClusterNodes* const head = nodes_.release();
  RunLoop* const runs = runs_.release();
  folder_ = first / "second";
  std::filesystem::create_directory(folder_);
  start();
  EXPECT_NE(view("host").problem, "");
  const auto token = nodes_->make_token(ann_);
  ASSERT_FALSE(token);
  EXPECT_EQ(token.error().code, ErrorCode::kUnavailable);
  delete head; // the port is free now, and the next try takes it
  EXPECT_TRUE(wait_until([&] { return view("host").problem.empty(); }));
  EXPECT_TRUE(nodes_->make_token(ann_));
  delete runs;
  delete kept;
  stop();
  folder_ = first;
}

// Anybody who reaches the port can be refused as often as they like. The audit is bounded, and says
// so.
TEST_F(NodesTest, AFloodOfRefusalsIsCountedAndNotAllListed) {
  const auto made = nodes_->make_token(ann_);
  ASSERT_TRUE(made);
  std::string token = made->token;
  token[6] = token[6] == '0' ? '1' : '0'; // its secret does not exist
  constexpr size_t kCalls = 150;
  for (size_t i = 0; i < kCalls; ++i)
    EXPECT_FALSE(join("node-1", token));
  metrics::DaemonSample sample;
  ASSERT_TRUE(wait_until([&] {
    sample = {};
    nodes_->add_samples(sample);
    return sample.node_refusals >= kCalls;
  }));
  EXPECT_EQ(audit("node-call").back().uid, -2) << "of a uid of their own: joins stay";
  EXPECT_LT(audit("node-call").size(), kCalls);
  EXPECT_GE(audit("node-call").size(), 60u);
  ASSERT_TRUE(wait_until([&] {
    (void)join("node-1", token);
    return audit("node-call").back().why.find("are not listed") != std::string::npos;
  }));
}

// ---- GPUs in quarantine
// -----------------------------------------------------------------------------

TEST_F(NodesTest, AGpuStaysInQuarantineOverARestartUntilItIsReleased) {
  quarantine_->add("GPU-11", "Xid 79");
  EXPECT_EQ(put_away_, 1u);
  stop();
  put_away_ = 0;
  start();
  EXPECT_EQ(put_away_, 1u) << "it is in the ledger";
  const auto gpus = nodes_->gpus();
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].quarantined_at, 0);
  EXPECT_GT(gpus[1].quarantined_at, 0);

  EXPECT_EQ(nodes_->release_gpu("7", ann_).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(nodes_->release_gpu("0", ann_).error().code, ErrorCode::kConflict);
  ASSERT_TRUE(nodes_->release_gpu("1", ann_));
  EXPECT_EQ(put_away_, 0u);
  const auto asked = audit("gpu-release");
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[0].result, wire::RequestResult::kRefused);
  EXPECT_EQ(asked[2].run, "GPU-11");
  EXPECT_EQ(asked[2].result, wire::RequestResult::kDone);
  stop();
  start();
  EXPECT_EQ(put_away_, 0u) << "released for good";
}

TEST_F(NodesTest, ARunsGpuIsPutAwayWithTheEventAndReleasedForTheRun) {
  runs_->handle({"aaaaa", 0, 0, state::Submitted{1, spec::Device::kCuda, "ann", "run", {}, {}}});
  runs_->handle({"aaaaa", 0, 0, state::SlotsGranted{{"GPU-10", "GPU-11"}}});
  quarantine_->add("GPU-11", "Xid 79"); // held, but no rank uses it
  EXPECT_EQ(runs_->find("aaaaa")->quarantine.count("GPU-11"), 1u);
  EXPECT_EQ(nodes_->gpus()[1].quarantined_by_run, "aaaaa");
  EXPECT_EQ(ledger_->gpu_quarantine()->size(), 1u);
  EXPECT_EQ(state::usable_slots(*runs_->find("aaaaa")), std::vector<std::string>{"GPU-10"});
  ASSERT_TRUE(nodes_->release_gpu("GPU-11", ann_));
  EXPECT_TRUE(runs_->find("aaaaa")->quarantine.empty());
  EXPECT_TRUE(ledger_->gpu_quarantine()->empty());
}

TEST_F(NodesTest, MetricsTellOfJoinedNodes) {
  auto membership = join("node-1", nodes_->make_token(ann_)->token);
  ASSERT_TRUE(membership);
  metrics::DaemonSample lost;
  nodes_->add_samples(lost);
  ASSERT_EQ(lost.nodes.size(), 1u);
  EXPECT_FALSE(lost.nodes[0].up);
  EXPECT_FALSE(lost.nodes[0].clock_offset_seconds);
  run_agent(*membership);
  ASSERT_TRUE(wait_until([&] {
    metrics::DaemonSample now;
    nodes_->add_samples(now);
    return now.nodes[0].up && now.nodes[0].clock_offset_seconds.has_value();
  }));
  ASSERT_TRUE(nodes_->remove("node-1", ann_));
  metrics::DaemonSample removed;
  nodes_->add_samples(removed);
  EXPECT_TRUE(removed.nodes.empty());
}

class ProbeRules : public testing::Test {
protected:
  void SetUp() override {
    add("ant", wire::NodeStatus::kReady);
    add("bee", wire::NodeStatus::kReady);
    add("cow", wire::NodeStatus::kLost);
    add("dog", wire::NodeStatus::kRemoved);
  }
  void add(const std::string& name, wire::NodeStatus state) {
    wire::NodeView view;
    view.name = name;
    view.state = state;
    view.build = "1 (abc)";
    nodes.push_back(view);
  }
  ErrorCode code(const std::string& node, const std::string& with) {
    const Status may = may_probe(nodes, node, with, [this](const std::string& name) {
      return name == busy ? RunId("k3fm2") : RunId();
    });
    why = may ? "" : may.error().what;
    return may ? ErrorCode{} : may.error().code;
  }
  std::vector<wire::NodeView> nodes;
  std::string busy, why;
};

TEST_F(ProbeRules, NodesThatAreHeardAndIdleAreMeasured) {
  EXPECT_EQ(code("ant", "bee"), ErrorCode{}) << why;
  EXPECT_EQ(code("bee", "bee"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("ant", "emu"), ErrorCode::kNotFound);
  EXPECT_EQ(code("dog", "ant"), ErrorCode::kNotFound) << "it was removed";
  EXPECT_EQ(code("ant", "cow"), ErrorCode::kConflict);
  EXPECT_NE(why.find("cow is not heard"), std::string::npos) << why;
  busy = "bee";
  EXPECT_EQ(code("ant", "bee"), ErrorCode::kConflict);
  EXPECT_NE(why.find("run k3fm2 has places on node bee"), std::string::npos) << why;
  busy.clear();
  nodes[1].run = "jobs1";
  EXPECT_EQ(code("ant", "bee"), ErrorCode::kConflict) << "it belongs to a job";
  nodes[1].run.clear();
  nodes[1].build = "1 (abd)";
  EXPECT_EQ(code("ant", "bee"), ErrorCode::kConflict);
  EXPECT_NE(why.find("node bee has build 1 (abd)"), std::string::npos) << why;
}

TEST_F(NodesTest, MeasuredLinksAreShownOnBothNodesUntilOneJoinsAnew) {
  wire::NetworkProbe measured;
  measured.node = "host";
  measured.with = "bee";
  measured.figures = {0.0002, 1.2e9};
  measured.measured_at = 50;
  nodes_->note_link(measured);
  stop();
  start();
  NetworkLinks links(*ledger_);
  ASSERT_TRUE(links.load());
  std::vector<wire::NodeView> shown(2);
  shown[0].name = "host";
  shown[1].name = "bee";
  shown[1].joined_at = 40;
  links.add_to(shown);
  ASSERT_EQ(shown[0].network.size(), 1u);
  EXPECT_EQ(shown[0].network[0].node, "bee");
  ASSERT_EQ(shown[1].network.size(), 1u);
  EXPECT_EQ(shown[1].network[0].node, "host");
  EXPECT_EQ(shown[1].network[0].figures.bytes_per_second, 1.2e9);
  shown[0].network.clear();
  shown[1].network.clear();
  shown[1].joined_at = 60;
  links.add_to(shown);
  EXPECT_TRUE(shown[0].network.empty()) << "that may be another machine";
  EXPECT_TRUE(view("host").network.empty()) << "bee is not in the list";
}

} // namespace
} // namespace nsa::control
