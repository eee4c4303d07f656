#include "daemon/nodes/network_links.h"

#include "common/base/log.h"

#include <algorithm>

namespace nsa::control {

Status NetworkLinks::load() {
  NSA_TRY_ASSIGN(auto rows, ledger_.network_links());
  for (store::NetworkLinkRow& row : rows)
    links_[{row.node, row.other}] = std::move(row);
  return {};
}

void NetworkLinks::note(const wire::NetworkProbe& measured) {
  store::NetworkLinkRow row{std::min(measured.node, measured.with),
                            std::max(measured.node, measured.with),
                            measured.figures.latency_seconds,
                            measured.figures.bytes_per_second,
                            measured.measured_at,
                            measured.figures.by};
  store::Batch batch;
  batch.network_links = {row};
  if (auto written = ledger_.commit(batch); !written)
    log::warning("nodes", "a measurement of the network was not stored",
                 {{"why", written.error().what}});
  links_[{row.node, row.other}] = std::move(row);
}

void NetworkLinks::add_to(std::vector<wire::NodeView>& nodes) const {
  if (links_.empty()) return;
  std::map<std::string, wire::NodeView*> by_name;
  for (wire::NodeView& node : nodes)
    by_name[node.name] = &node;
  for (const auto& [names, row] : links_) {
    const auto one = by_name.find(row.node), other = by_name.find(row.other);
    if (one == by_name.end() || other == by_name.end()) continue;
    if (row.measured_at < std::max<int64_t>(one->second->joined_at, other->second->joined_at))
      continue;
    const wire::NetworkFigures figures{row.latency_seconds, row.bytes_per_second, row.by};
    one->second->network.push_back({row.other, figures, row.measured_at});
    other->second->network.push_back({row.node, figures, row.measured_at});
  }
}

Status may_probe(const std::vector<wire::NodeView>& nodes, const std::string& node,
                 const std::string& with,
                 const std::function<RunId(const std::string& node)>& run_on) {
  if (node == with)
    return fail(ErrorCode::kInvalidArgument, "a network is between two nodes, and both are " + node,
                "name another node: nsactl node ls");
  std::string build;
  for (const std::string& name : {node, with}) {
    const auto found = std::ranges::find(nodes, name, &wire::NodeView::name);
    if (found == nodes.end() || found->state == wire::NodeStatus::kRemoved)
      return fail(ErrorCode::kNotFound, "no node is named '" + name + "'", "see nsactl node ls");
    if (found->state == wire::NodeStatus::kLost)
      return fail(ErrorCode::kConflict, "node " + name + " is not heard",
                  "nsactl node ls shows since when");
    if (const RunId run = found->run.empty() ? run_on(name) : found->run; !run.empty())
      return fail(ErrorCode::kConflict, "run " + run + " has places on node " + name,
                  "its traffic would be measured, too: wait for its end, nsactl wait " + run);
    if (!build.empty() && found->build != build)
      return fail(ErrorCode::kConflict,
                  "node " + with + " has build " + found->build + ", node " + node + " has " +
                      build,
                  "install one build on all nodes");
    build = found->build;
  }
  return {};
}

} // namespace nsa::control
