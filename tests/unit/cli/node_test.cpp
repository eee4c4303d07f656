// nsactl node: the nodes of a head in the output for people and for scripts.
#include "commands_fixture.h"

namespace nsa::cli {
namespace {

class NodeCommands : public Commands {
protected:
  void SetUp() override {
    daemon.on_loop([&] {
      daemon.nodes.add("ant", wire::NodeRole::kHead, wire::NodeStatus::kReady);
      daemon.nodes.add("bee", wire::NodeRole::kAgent, wire::NodeStatus::kReady);
      daemon.nodes.add("cow", wire::NodeRole::kAgent, wire::NodeStatus::kRemoved);
      wire::NodeView& bee = daemon.nodes.nodes[1];
      bee.processors = 32;
      bee.memory_bytes = uint64_t{64} << 30;
      bee.gpus = {"NVIDIA H200", "NVIDIA H200"};
      bee.address = "10.0.0.7:40122";
      bee.clock_offset_seconds = -0.00025;
      bee.round_trip_seconds = 0.0004;
      return 0;
    });
  }
};

TEST_F(NodeCommands, LsShowsWhoIsThere) {
  const Outcome listed = run({"node", "ls"});
  EXPECT_EQ(listed.exit, 0) << listed.err;
  EXPECT_NE(listed.out.find("ant"), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find("64.0 GiB"), std::string::npos) << listed.out;
  EXPECT_NE(listed.out.find("-0.25 ms"), std::string::npos) << listed.out;
  EXPECT_EQ(listed.out.find("cow"), std::string::npos) << "it was removed\n" << listed.out;
  EXPECT_NE(run({"node", "ls", "-a"}).out.find("removed"), std::string::npos);
  EXPECT_EQ(json::parse(run({"node", "ls", "-o", "json"}).out).at("items").size(), 2u);
}

TEST_F(NodeCommands, ShowTellsOneNode) {
  const Outcome shown = run({"node", "show", "bee"});
  EXPECT_EQ(shown.exit, 0) << shown.err;
  EXPECT_NE(shown.out.find("NVIDIA H200, NVIDIA H200"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("10.0.0.7:40122"), std::string::npos) << shown.out;
  EXPECT_EQ(shown.out.find("drained"), std::string::npos) << shown.out;
  const Outcome unknown = run({"node", "show", "emu"});
  EXPECT_EQ(unknown.exit, 3);
  EXPECT_NE(unknown.err.find("no node is named 'emu'"), std::string::npos) << unknown.err;
}

TEST_F(NodeCommands, ATokenIsAloneOnStandardOutput) {
  const Outcome made = run({"node", "token"});
  EXPECT_EQ(made.out, "nsa1-secret-print\n") << "so that $(nsactl node token) is it";
  EXPECT_NE(made.err.find("nsad --join head:9465 --token"), std::string::npos) << made.err;
  EXPECT_EQ(run({"node", "token", "-q"}).err, "");
  daemon.on_loop([&] { return daemon.nodes.is_head = false, 0; });
  const Outcome refused = run({"node", "token"});
  EXPECT_EQ(refused.exit, 5);
  EXPECT_NE(refused.err.find("hint: "), std::string::npos) << refused.err;
}

TEST_F(NodeCommands, ADataSetIsPushedAndItsEndAwaited) {
  daemon.on_loop([&] {
    daemon.nodes.push.state = wire::WorkState::kRunning;
    daemon.nodes.push.total_bytes = 4 << 20;
    daemon.nodes.push.fetched_bytes = 3 << 20;
    daemon.nodes.push.damaged = 1;
    return 0;
  });
  const Outcome done = run({"data", "push", "bee", "/data/mine/"});
  EXPECT_EQ(done.exit, 0) << done.err;
  EXPECT_NE(done.out.find("node bee has /data/mine, 4.0 MiB: 3.0 MiB came"), std::string::npos)
      << done.out;
  EXPECT_NE(done.out.find("1 of its files"), std::string::npos) << done.out;
  daemon.on_loop([&] {
    daemon.nodes.end_of_push = wire::WorkState::kFailed;
    daemon.nodes.push.problem = "node bee is not heard any more";
    daemon.nodes.push.next = "nsactl data push bee /data/mine continues where it stopped";
    return 0;
  });
  const Outcome failed = run({"data", "push", "bee", "/data/mine"});
  EXPECT_NE(failed.exit, 0);
  EXPECT_NE(failed.err.find("not heard any more"), std::string::npos) << failed.err;
  EXPECT_NE(failed.err.find("continues where it stopped"), std::string::npos) << failed.err;
  const Outcome unknown = run({"data", "push", "emu", "/data/mine"});
  EXPECT_EQ(unknown.exit, 3);
}

TEST_F(NodeCommands, ShowHasTheMeasuredNetwork) {
  daemon.on_loop([&] {
    daemon.nodes.nodes[1].network = {
        {"ant", {0.00021, 1.176e9, wire::MeasuredBy::kNccl}, 600'000'000'000}};
    return 0;
  });
  const Outcome shown = run({"node", "show", "bee"});
  EXPECT_NE(shown.out.find("network to ant        9.41 Gbit/s, 0.21 ms, NCCL, measured 1970-01-01"),
            std::string::npos)
      << shown.out;
}

TEST_F(NodeCommands, AProbeMeasuresTheNamedPairOrAll) {
  daemon.on_loop([&] {
    daemon.nodes.add("dog", wire::NodeRole::kAgent, wire::NodeStatus::kReady);
    daemon.nodes.add("emu", wire::NodeRole::kAgent, wire::NodeStatus::kLost);
    daemon.nodes.probe.figures = {0.012, 1.05e7};
    return 0;
  });
  const Outcome pair = run({"node", "probe", "bee", "dog"});
  EXPECT_EQ(pair.exit, 0) << pair.err;
  EXPECT_EQ(pair.out, "bee and dog: 84 Mbit/s, 12 ms, TCP\n");
  EXPECT_EQ(run({"node", "probe", "dog"}).exit, 0);
  const Outcome all = run({"node", "probe", "-o", "json"});
  EXPECT_EQ(json::parse(all.out).at("items").size(), 3u) << all.out;
  EXPECT_EQ(run({"node", "probe", "bee", "dog", "--cpu", "--interface", "eth1"}).exit, 0);
  const auto asked = daemon.on_loop([&] { return daemon.nodes.probes; });
  EXPECT_EQ(asked, (std::vector<std::string>{"bee dog", "ant dog", "ant bee", "ant dog", "bee dog",
                                             "bee dog cpu eth1"}))
      << "this nsad's own node with the one that is named, and then all that are ready";
}

TEST_F(NodeCommands, AProbeThatFailsSaysWhyAndLeavesOutNoOtherPair) {
  daemon.on_loop([&] {
    daemon.nodes.probe.problem = "node bee: a peer has not connected in time";
    daemon.nodes.probe.next = "every TCP port must be open between the nodes";
    return 0;
  });
  const Outcome failed = run({"node", "probe", "bee"});
  EXPECT_NE(failed.exit, 0);
  EXPECT_NE(failed.err.find("has not connected in time"), std::string::npos) << failed.err;
  EXPECT_NE(failed.err.find("must be open"), std::string::npos) << failed.err;
  EXPECT_EQ(run({"node", "probe", "ant", "emu"}).exit, 3);
  daemon.on_loop([&] { return daemon.nodes.nodes[1].state = wire::NodeStatus::kLost, 0; });
  const Outcome alone = run({"node", "probe"});
  EXPECT_EQ(alone.exit, 5);
  EXPECT_NE(alone.err.find("fewer are ready"), std::string::npos) << alone.err;
}

TEST_F(NodeCommands, ARemovalNeedsAYes) {
  const Outcome refused = run({"node", "rm", "bee"});
  EXPECT_EQ(refused.exit, 2) << "without a terminal nobody can be asked";
  EXPECT_NE(refused.err.find("nsactl node rm -y bee"), std::string::npos) << refused.err;
  const Outcome no = run_on_terminal({"node", "rm", "bee"}, "n\n");
  EXPECT_EQ(no.exit, 1) << "as rm and prune say it";
  EXPECT_NE(no.err.find("nothing was removed"), std::string::npos) << no.err;
  EXPECT_NE(run({"node", "ls"}).out.find("bee"), std::string::npos);
  EXPECT_EQ(run_on_terminal({"node", "rm", "bee"}, "y\n").exit, 0);
  EXPECT_EQ(run({"node", "ls"}).out.find("bee"), std::string::npos);
  EXPECT_EQ(run({"node", "rm", "-y", "emu"}).exit, 3);
}

TEST_F(NodeCommands, DrainAndUndrain) {
  EXPECT_EQ(run({"node", "drain", "ant"}).exit, 0);
  EXPECT_NE(run({"node", "ls"}).out.find("drained"), std::string::npos);
  EXPECT_EQ(run({"node", "undrain", "ant"}).exit, 0);
  EXPECT_EQ(run({"node", "ls"}).out.find("drained"), std::string::npos);
  EXPECT_EQ(run({"node", "drain"}).exit, 2);
}

} // namespace
} // namespace nsa::cli
