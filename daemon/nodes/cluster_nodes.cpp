#include "daemon/nodes/cluster_nodes.h"

#include "common/base/log.h"
#include "common/wire/words.h"
#include "daemon/cluster/agent.h"
#include "daemon/nodes/node_facts.h"
#include "daemon/state/parts.h"

#include <algorithm>

namespace nsa::control {

namespace {
constexpr Duration kOpenAgain = std::chrono::seconds(5);
// Anyone who can reach the port can cause refusals at any rate. The audit accepts this many rows at
// once, then one a second, and counts the rest.
constexpr double kMostRefusals = 60;
constexpr std::string_view kReleaseGpu = "gpu-release";
// Most audit rows that may wait while the ledger cannot be written.
constexpr size_t kMostWaiting = 10'000;

wire::NodeStatus status_of(cluster::NodeState state) {
  switch (state) {
  case cluster::NodeState::kReady:
    return wire::NodeStatus::kReady;
  case cluster::NodeState::kLost:
    return wire::NodeStatus::kLost;
  case cluster::NodeState::kRemoved:
    return wire::NodeStatus::kRemoved;
  }
  return wire::NodeStatus::kLost;
}

void add_facts(wire::NodeView& view, const cluster::NodeHello& facts) {
  view.build = facts.build;
  view.boot_id = facts.boot_id;
  view.processors = facts.processors;
  view.memory_bytes = facts.memory_bytes;
  view.gpus = facts.gpus;
}

} // namespace

wire::NodeView ClusterNodes::view_of(const cluster::Node& node) const {
  wire::NodeView view;
  view.name = node.record.name;
  view.role = wire::NodeRole::kAgent;
  view.state = status_of(node.state);
  view.address = node.address;
  add_facts(view, node.facts);
  view.joined_at = node.record.joined_at;
  view.certificate_expires_at = node.record.expires_at;
  view.heard_at = node.heard_at;
  view.removed_at = node.record.removed_at;
  view.clock_offset_seconds = to_seconds(Duration(node.clock_offset_ns));
  view.round_trip_seconds = to_seconds(Duration(node.round_trip_ns));
  view.cpu_slots = node.facts.cpu_slots;
  view.run = node.facts.run;
  if (const auto since = drained_.find(view.name); since != drained_.end()) {
    view.drained_at = since->second;
    if (view.state == wire::NodeStatus::kReady) view.state = wire::NodeStatus::kDrained;
  }
  return view;
}

ClusterNodes::ClusterNodes(Tools tools, Options options)
    : tools_(tools), options_(std::move(options)), book_(tools.ledger), links_(tools.ledger),
      facts_(read_node_facts()), refusals_left_(kMostRefusals), refilled_(tools.clock.monotonic()) {
  if (options_.cluster.folder.empty()) options_.cluster.folder = options_.state_folder + "/cluster";
}

Status ClusterNodes::start() {
  NSA_TRY_ASSIGN(const int64_t drained_at, tools_.ledger.drained_at(options_.node));
  drained_at_ = {drained_at};
  if (drained_at != 0) options_.hold_back(options_.node);
  NSA_TRY_ASSIGN(const auto drained, tools_.ledger.drained_nodes());
  for (const store::DrainRow& row : drained)
    drained_[row.node] = row.drained_at;
  NSA_TRY(links_.load());
  if (!options_.cluster.address.empty()) open();
  return {};
}

// A taken port does not stop nsad, because its ranks still need supervision.
void ClusterNodes::open() {
  cluster::HeadOptions wanted;
  wanted.folder = options_.cluster.folder;
  wanted.own_node = options_.node;
  wanted.address = options_.cluster.address;
  wanted.port = static_cast<uint16_t>(options_.cluster.port);
  wanted.certificate_lifetime = std::chrono::hours(24 * options_.cluster.certificate_days);
  wanted.frame = options_.on_frame;
  auto opened = cluster::Head::open(tools_.events, book_, wanted,
                                    [this](const cluster::Notice& notice) { take(notice); });
  if (!opened) {
    if (problem_ != opened.error().what)
      log::error("nodes", "no node can reach this head", {{"why", opened.error().what}});
    problem_ = opened.error().what;
    again_ = tools_.clock.after(kOpenAgain, [this] { open(); });
    return;
  }
  head_ = std::move(*opened);
  problem_.clear();
  log::info("nodes", "nodes may join", {{"address", address()}});
}

std::string ClusterNodes::address() const {
  if (!options_.cluster.advertise.empty())
    return cluster::HeadAddress{options_.cluster.advertise, head_->port()}.text();
  const std::string& given = options_.cluster.address;
  const bool is_any = given == "0.0.0.0" || given == "::";
  return cluster::HeadAddress{is_any ? options_.node : given, head_->port()}.text();
}

Result<cluster::Head*> ClusterNodes::head() {
  if (head_) return head_.get();
  if (options_.cluster.address.empty())
    return fail(ErrorCode::kConflict, "this nsad is no head: no other node may join it",
                "in nsad.toml write [cluster] and address = \"0.0.0.0\"; then nsactl daemon stop "
                "&& nsactl daemon start");
  return fail(ErrorCode::kUnavailable, "this head cannot be reached by nodes: " + problem_,
              "free the port, or set cluster.port in nsad.toml; nsad tries again every 5 s");
}

// ---- Requests from users ------------------------------------------------------------------------

wire::NodeView ClusterNodes::own_view() {
  wire::NodeView view;
  view.name = options_.node;
  const bool is_head = !options_.cluster.address.empty();
  view.role = is_head ? wire::NodeRole::kHead : wire::NodeRole::kSingle;
  view.state = drained_at_.nanoseconds != 0 ? wire::NodeStatus::kDrained : wire::NodeStatus::kReady;
  if (head_) view.address = address();
  view.problem = problem_;
  add_facts(view, facts_);
  view.gpus.clear();
  for (const wire::GpuView& gpu : options_.gpus())
    view.gpus.push_back(gpu.name);
  view.cpu_slots = options_.cpu_slots;
  view.heard_at = tools_.clock.wall().nanoseconds;
  view.drained_at = drained_at_.nanoseconds;
  return view;
}

std::vector<wire::NodeView> ClusterNodes::list() {
  std::vector<wire::NodeView> views = {own_view()};
  if (!head_) return views;
  for (const cluster::Node& node : head_->nodes())
    views.push_back(view_of(node));
  links_.add_to(views);
  return views;
}

Result<wire::NodeToken> ClusterNodes::make_token(const api::Caller& caller) {
  const auto make = [this]() -> Result<wire::NodeToken> {
    NSA_TRY_ASSIGN(cluster::Head * open_head, head());
    const WallTime expires = tools_.clock.wall() + cluster::JoinToken::kLifetime;
    NSA_TRY_ASSIGN(const cluster::JoinToken token, open_head->make_token());
    return wire::NodeToken{token.text(), address(), expires.nanoseconds};
  };
  auto made = make();
  NSA_TRY(audited(caller, "node-token", "", made ? Status() : fail(made.error())));
  return made;
}

Status ClusterNodes::remove(const std::string& node, const api::Caller& caller) {
  const auto remove = [&]() -> Status {
    if (node == options_.node)
      return fail(ErrorCode::kConflict, "node " + node + " is this nsad's own",
                  "to end it: nsactl daemon stop");
    NSA_TRY_ASSIGN(cluster::Head * open_head, head());
    return open_head->remove(node);
  };
  return audited(caller, "node-remove", node, remove());
}

Status ClusterNodes::set_drained(const std::string& node, bool drained, const api::Caller& caller) {
  Status done = drain(node, drained, caller);
  return done ? done
              : audited(caller, drained ? "node-drain" : "node-undrain", node, std::move(done));
}

// Runs that already have slots on the node keep them. Only new runs are kept away.
Status ClusterNodes::drain(const std::string& node, bool drained, const api::Caller& caller) {
  const auto listed = list();
  const auto found = std::ranges::find(listed, node, &wire::NodeView::name);
  if (found == listed.end() || found->state == wire::NodeStatus::kRemoved)
    return fail(ErrorCode::kNotFound, "no node is named '" + node + "'", "see nsactl node ls");
  if ((found->drained_at != 0) == drained) return {};
  const WallTime at = drained ? tools_.clock.wall() : WallTime{};
  store::Batch batch;
  batch.drains = {{node, at.nanoseconds}};
  batch.audit = {audit_row(caller, drained ? "node-drain" : "node-undrain", node)};
  NSA_TRY(tools_.ledger.commit(batch));
  if (node == options_.node) {
    drained_at_ = at;
    options_.hold_back(drained ? options_.node : "");
  } else if (drained) {
    drained_[node] = at.nanoseconds;
  } else {
    drained_.erase(node);
  }
  return {};
}

Result<wire::DataPush> ClusterNodes::push_data(const std::string& node, const std::string& path,
                                               const api::Caller& caller) {
  const auto push = [&]() -> Result<wire::DataPush> {
    NSA_TRY(head());
    if (node == options_.node)
      return fail(ErrorCode::kInvalidArgument, "node " + node + " is the head, which has the data",
                  "name another node: nsactl node ls");
    const auto listed = list();
    const auto found = std::ranges::find(listed, node, &wire::NodeView::name);
    if (found == listed.end() || found->state == wire::NodeStatus::kRemoved)
      return fail(ErrorCode::kNotFound, "no node is named '" + node + "'", "see nsactl node ls");
    return options_.push(node, path);
  };
  auto pushed = push();
  NSA_TRY(audited(caller, "node-data", node, pushed ? Status() : fail(pushed.error())));
  return pushed;
}

Result<wire::DataPush> ClusterNodes::pushed_data(const std::string& node) {
  return options_.pushed(node);
}

Result<wire::NetworkProbe> ClusterNodes::probe_network(const std::string& node,
                                                       const wire::NetworkProbeRequest& wanted,
                                                       const api::Caller& caller) {
  const auto probe = [&]() -> Result<wire::NetworkProbe> {
    NSA_TRY(head());
    NSA_TRY(may_probe(list(), node, wanted.with, options_.run_on));
    return options_.probe(node, wanted);
  };
  auto probed = probe();
  NSA_TRY(audited(caller, "node-probe", node, probed ? Status() : fail(probed.error())));
  return probed;
}

Result<wire::NetworkProbe> ClusterNodes::probed_network(const std::string& node) {
  return options_.probed(node);
}

std::vector<wire::GpuView> ClusterNodes::gpus() {
  std::vector<wire::GpuView> views = options_.gpus();
  if (options_.gpus_elsewhere)
    for (wire::GpuView& view : options_.gpus_elsewhere())
      views.push_back(std::move(view));
  auto left = tools_.quarantine.entries();
  for (wire::GpuView& view : views)
    if (const auto found = left.find(state::slot_on(view.node, view.uuid)); found != left.end()) {
      view.state = wire::GpuStatus::kQuarantine;
      view.why = found->second.why;
      view.quarantined_at = found->second.since;
      view.quarantined_by_run = found->second.run;
      left.erase(found);
    }
  for (const auto& [slot, row] : left) { // the node lacks this GPU now, or is not connected
    wire::GpuView& view = views.emplace_back();
    view.index = -1;
    view.node = state::node_of_slot(slot);
    view.uuid = view.node.empty() ? slot : slot.substr(view.node.size() + 1);
    view.state = wire::GpuStatus::kQuarantine;
    view.why = row.why;
    view.quarantined_at = row.since;
    view.quarantined_by_run = row.run;
  }
  return views;
}

Result<wire::GpuView> ClusterNodes::release_gpu(const std::string& gpu, const api::Caller& caller) {
  const auto find = [&]() -> Result<wire::GpuView> {
    for (wire::GpuView& view : gpus())
      if (gpu == view.uuid || gpu == state::slot_on(view.node, view.uuid) ||
          gpu == state::slot_on(view.node, std::to_string(view.index)))
        return std::move(view);
    return fail(ErrorCode::kNotFound, "no node has a GPU '" + gpu + "'", "see nsactl gpu ls");
  };
  const auto found = find();
  const std::string slot = found ? state::slot_on(found->node, found->uuid) : gpu;
  const Status done = found ? tools_.quarantine.release(slot, audit_row(caller, kReleaseGpu, slot))
                            : fail(found.error());
  if (!done) {
    NSA_TRY(audited(caller, kReleaseGpu, gpu, done));
  }
  return find();
}

// ---- Notices from the head ----------------------------------------------------------------------

void ClusterNodes::take(const cluster::Notice& notice) {
  using enum cluster::Notice::Kind;
  switch (notice.kind) {
  case kJoined:
    log::info("nodes", "a node has joined", {{"node", notice.node}, {"address", notice.address}});
    return note(notice.address, "node-join", notice.node, "");
  case kRenewed:
    log::info("nodes", "a node has a new certificate", {{"node", notice.node}});
    return note(notice.address, "node-renew", notice.node, "");
  case kReady:
    return log::info("nodes", "a node is heard",
                     {{"node", notice.node}, {"address", notice.address}});
  case kLost:
    if (options_.on_lost) options_.on_lost(notice.node);
    return log::warning("nodes", "a node is not heard any more",
                        {{"node", notice.node}, {"why", notice.why}});
  case kRemoved: // the audit names who asked for the removal
    if (options_.on_lost) options_.on_lost(notice.node);
    return log::info("nodes", "a node was removed", {{"node", notice.node}});
  case kRefused:
    return note_refusal(notice);
  }
}

void ClusterNodes::note_refused(const std::string& node, const std::string& why) {
  note_refusal({cluster::Notice::Kind::kRefused, node, address_of(node), why});
}

void ClusterNodes::note_refusal(const cluster::Notice& notice) {
  ++refusals_;
  const MonotonicTime now = tools_.clock.monotonic();
  refusals_left_ =
      std::min(kMostRefusals, refusals_left_ + to_seconds(now - std::exchange(refilled_, now)));
  if (refusals_left_ < 1) {
    ++unlisted_;
    return;
  }
  refusals_left_ -= 1;
  std::string why = notice.why;
  if (const uint64_t count = std::exchange(unlisted_, 0); count > 0)
    why += "; " + std::to_string(count) + " refusals before this one are not listed";
  log::warning("nodes", "a call is refused",
               {{"node", notice.node}, {"address", notice.address}, {"why", why}});
  note(notice.address, "node-call", notice.node, why);
}

// ---- The audit ----------------------------------------------------------------------------------

store::AuditRow ClusterNodes::audit_row(const api::Caller& caller, std::string_view verb,
                                        const std::string& node) const {
  store::AuditRow row;
  row.at = tools_.clock.wall().nanoseconds;
  row.uid = caller.uid;
  row.user = caller.user;
  row.pid = caller.pid;
  row.verb = verb;
  row.run = node;
  row.result = wire::RequestResult::kDone;
  return row;
}

Status ClusterNodes::audited(const api::Caller& caller, std::string_view verb,
                             const std::string& node, Status done) {
  if (tools_.loop.batch().audit.size() >= kMostWaiting) return done;
  store::AuditRow row = audit_row(caller, verb, node);
  if (!done) {
    row.result = wire::RequestResult::kRefused;
    row.why = done.error().what;
  }
  tools_.loop.batch().audit.push_back(std::move(row));
  tools_.loop.flush();
  return done;
}

// Records a caller from the network, who has no uid here. The audit keeps a fixed number of rows
// for each uid. Refusals have their own uid, so that they never push out the rows of joins.
void ClusterNodes::note(const std::string& who, std::string_view verb, const std::string& node,
                        const std::string& why) {
  if (tools_.loop.batch().audit.size() >= kMostWaiting) return;
  store::AuditRow row;
  row.at = tools_.clock.wall().nanoseconds;
  row.uid = why.empty() ? -1 : -2;
  row.user = who;
  row.verb = verb;
  row.run = node;
  row.result = why.empty() ? wire::RequestResult::kDone : wire::RequestResult::kRefused;
  row.why = why;
  tools_.loop.batch().audit.push_back(std::move(row));
  tools_.loop.flush();
}

// ---- Runs ---------------------------------------------------------------------------------------

Status ClusterNodes::send(const std::string& node, const wire::Frame& frame) {
  if (!head_) return fail(ErrorCode::kUnavailable, "node " + node + " is not heard");
  return head_->send(node, frame);
}

std::map<std::string, int> ClusterNodes::cpu_slots(const RunId& job) const {
  std::map<std::string, int> slots;
  if (!head_) return slots;
  for (const cluster::Node& node : head_->nodes())
    if (node.state == cluster::NodeState::kReady && node.facts.cpu_slots > 0 &&
        node.facts.run == job && drained_.count(node.record.name) == 0)
      slots[node.record.name] = static_cast<int>(std::min<int64_t>(node.facts.cpu_slots, 4096));
  return slots;
}

WallTime ClusterNodes::joined_at(const std::string& name) const {
  if (head_)
    for (const cluster::Node& node : head_->nodes())
      if (node.record.name == name) return {node.record.joined_at};
  return {};
}

std::pair<Duration, Duration> ClusterNodes::clock_of(const std::string& name) const {
  if (head_)
    for (const cluster::Node& node : head_->nodes())
      if (node.record.name == name)
        return {Duration(node.clock_offset_ns), Duration(node.round_trip_ns)};
  return {};
}

std::string ClusterNodes::address_of(const std::string& name) const {
  if (head_)
    for (const cluster::Node& node : head_->nodes())
      if (node.record.name == name) return node.address;
  return {};
}

Result<std::string> ClusterNodes::job_address() {
  NSA_TRY(head());
  return address();
}

Result<std::string> ClusterNodes::job_token() {
  NSA_TRY_ASSIGN(cluster::Head * open_head, head());
  NSA_TRY_ASSIGN(const cluster::JoinToken token, open_head->make_token());
  return token.text();
}

void ClusterNodes::retire(const std::string& name) {
  if (!head_ || joined_at(name).nanoseconds == 0) return;
  if (auto removed = head_->remove(name); !removed)
    log::warning("nodes", "a node of a job that is over cannot be removed",
                 {{"node", name}, {"why", removed.error().what}});
}

// ---- Metrics ------------------------------------------------------------------------------------

void ClusterNodes::add_samples(metrics::DaemonSample& daemon) const {
  daemon.node_refusals = refusals_;
  if (!head_) return;
  for (const cluster::Node& node : head_->nodes()) {
    if (node.state == cluster::NodeState::kRemoved) continue;
    metrics::NodeSample sample;
    sample.node = node.record.name;
    sample.up = node.state == cluster::NodeState::kReady;
    sample.certificate_expires = {node.record.expires_at};
    if (sample.up && node.round_trip_ns > 0) {
      sample.clock_offset_seconds = to_seconds(Duration(node.clock_offset_ns));
      sample.round_trip_seconds = to_seconds(Duration(node.round_trip_ns));
    }
    daemon.nodes.push_back(std::move(sample));
  }
}

} // namespace nsa::control
