// A head and its nodes on one loop, over the loopback interface, with real handshakes.
#pragma once

#include "daemon/cluster/agent.h"
#include "daemon/cluster/head.h"
#include "tests/support/run_until.h"

#include <filesystem>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace nsa::cluster {

// Keeps in memory what a ledger would store.
class MemoryBook : public NodeBook {
public:
  Result<std::vector<NodeRecord>> nodes() override {
    std::vector<NodeRecord> listed;
    for (const auto& [name, node] : nodes_)
      listed.push_back(node);
    return listed;
  }
  Status save(const NodeRecord& node) override {
    if (full) return fail(ErrorCode::kExhausted, "the disk is full");
    nodes_[node.name] = node;
    return {};
  }
  Result<std::optional<TokenRecord>> token(const std::string& digest) override {
    const auto found = tokens.find(digest);
    if (found == tokens.end()) return std::nullopt;
    return found->second;
  }
  Status add(const TokenRecord& token) override {
    if (full) return fail(ErrorCode::kExhausted, "the disk is full");
    tokens[token.digest] = token;
    return {};
  }
  Status admit(const std::string& digest, const NodeRecord& node) override {
    if (full) return fail(ErrorCode::kExhausted, "the disk is full");
    tokens.at(digest).used_by = node.name;
    nodes_[node.name] = node;
    return {};
  }
  std::map<std::string, TokenRecord> tokens;
  bool full = false;

private:
  std::map<std::string, NodeRecord> nodes_;
};

class ClusterTest : public testing::Test {
protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "nsa-cluster-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    options_.folder = folder_ / "cluster";
    options_.address = "127.0.0.1";
    options_.heartbeat = std::chrono::milliseconds(50);
    options_.lost_after = std::chrono::milliseconds(1500);
    start_head();
  }
  void TearDown() override {
    agents_.clear();
    head_.reset();
    std::filesystem::remove_all(folder_);
  }

  void start_head() {
    auto made = Head::open(loop_, book_, options_,
                           [this](const Notice& notice) { told_.push_back(notice); });
    ASSERT_TRUE(made) << made.error().what;
    head_ = std::move(*made);
    options_.port = head_->port(); // the same after a restart
  }

  Result<Membership> join(const std::string& name, const JoinToken& token) {
    std::optional<Result<Membership>> result;
    const auto joining =
        join_cluster(loop_, {"127.0.0.1", head_->port()}, token, name, folder_ / name,
                     [&](Result<Membership> made) { result = std::move(made); });
    if (!wait_until([&] { return result.has_value(); }))
      return fail(ErrorCode::kInternal, "nobody answered");
    return std::move(*result);
  }

  // Makes a node join, and starts its agent.
  Agent& add(const std::string& name) {
    auto membership = join(name, *head_->make_token());
    EXPECT_TRUE(membership) << membership.error().what;
    return start(name, std::move(*membership));
  }
  Agent& start(const std::string& name, Membership membership) {
    Agent::Options options;
    options.folder = folder_ / name;
    options.facts.build = "test";
    options.facts.processors = 2;
    options.first_pause = std::chrono::milliseconds(5);
    options.longest_pause = std::chrono::milliseconds(50);
    Agent::Events events;
    events.ready = [this, name] { ++ready_[name]; };
    events.cut = [this, name](const Error& why) { cut_[name] = why; };
    events.ended = [this, name](const Error& why) { ended_[name] = why; };
    agents_[name] = std::make_unique<Agent>(loop_, std::move(membership), options, events);
    return *agents_[name];
  }

  Node node(const std::string& name) {
    for (const Node& node : head_->nodes())
      if (node.record.name == name) return node;
    return {};
  }
  bool is(const std::string& name, NodeState state) { return node(name).state == state; }
  bool was_told(Notice::Kind kind, const std::string& words = "") {
    for (const Notice& notice : told_)
      if (notice.kind == kind && notice.why.find(words) != std::string::npos) return true;
    return false;
  }

  bool wait_until(const std::function<bool()>& holds) { return test::run_until(loop_, holds); }

  net::EventLoop loop_;
  std::filesystem::path folder_;
  MemoryBook book_;
  HeadOptions options_;
  std::unique_ptr<Head> head_;
  std::vector<Notice> told_;
  std::map<std::string, std::unique_ptr<Agent>> agents_;
  std::map<std::string, int> ready_;
  std::map<std::string, Error> cut_, ended_;
};

} // namespace nsa::cluster
