// Supervises an attempt on several nodes. It has one AttemptSupervisor for each part. It decides
// what only the whole can show: who hangs, whether a node is lost, when the attempt has ended. Its
// listener sees one attempt. docs/design/several-nodes.md has the rules.
//
// All calls are on the loop's thread. Destroying it leaves shims and ranks alone.
#pragma once

#include "daemon/parts/evidence_of_parts.h"
#include "daemon/parts/network_fault.h"
#include "daemon/parts/remote_host.h"
#include "daemon/parts/remote_nodes.h"
#include "daemon/state/parts.h"
#include "daemon/supervision/attempt_supervisor.h"

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace nsa::parts {

class JointAttempt final : public control::ShimConnection {
public:
  JointAttempt(net::EventLoop& loop, control::ShimListener& listener, control::Reach reach,
               RemoteNodes& nodes, control::ShimConnectionOptions options);
  ~JointAttempt() override;

  const std::vector<state::RankSample>& samples() const override { return samples_; }
  bool caught_up() const override;
  state::Learned learned() const override { return hangs_.limits().learned(); }

  void start() override;
  void observe(MonotonicTime now) override;
  void take_evidence(const std::string& id, double limit_seconds) override;
  void stop_ranks(bool checkpoint) override;
  void kill_ranks(const std::string& reason) override;
  void checkpoint_ranks() override;
  void acknowledge(uint64_t sequence) override;
  void release() override;
  void say_goodbye() override;

private:
  struct PartOf;
  template <class Do> void for_each(Do act);
  void on_event(size_t part, state::EventBody body, uint64_t sequence);
  void on_evidence(size_t part, state::EvidenceSaved saved);
  void tell_evidence(MonotonicTime now);
  void on_part_ended(size_t part);
  void tell(PartOf& part);
  void speak(MonotonicTime now);
  void merge();
  bool all_heard() const;
  bool has_fresh_pages(MonotonicTime now) const;
  void look_for_lost_nodes(MonotonicTime now);
  void lose(const std::string& node, const std::string& why);
  void look_into_network(const state::Verdict& verdict);
  void on_links(size_t part, std::vector<RankLink> links);
  void judge_network();
  nlohmann::json nodes_of_verdict();
  const std::string& name_of_node(size_t part) const;
  size_t part_of(Rank rank) const;
  void emit(state::EventBody body) { listener_.on_event(key_, std::move(body), 0); }

  // A verdict that waits for the nodes' reports of their connections.
  struct Suspicion {
    state::Verdict verdict;
    MonotonicTime since;
    size_t waiting = 0; // nodes that have not answered
    std::vector<LinksOfNode> links;
  };

  control::ShimListener& listener_;
  control::Reach reach_;
  RemoteNodes& nodes_;
  control::ShimConnectionOptions options_;
  std::string own_node_;
  control::AttemptKey key_;
  std::vector<state::RankSample> samples_;
  control::HangWatch hangs_;
  std::vector<std::unique_ptr<PartOf>> parts_;
  std::optional<Suspicion> suspicion_;
  std::optional<EvidenceOfParts> evidence_; // evidence of the verdict, once it was requested
  struct Told { // the verdict and samples that were reported with the evidence, for late evidence
    state::Verdict verdict;
    std::vector<state::RankSample> samples;
  } told_;
  bool evidence_told_ = false; // reported to the listener
  bool adopted_ = false, released_ = false, ended_ = false;
  std::set<std::string> lost_nodes_; // nodes that were reported lost and are not connected again
  MonotonicTime spoke_at_, looked_at_;
  // Expires with this object, so that late answers are ignored.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  MonotonicTime moved_at_; // when a rank on a connected node last moved
};

} // namespace nsa::parts
