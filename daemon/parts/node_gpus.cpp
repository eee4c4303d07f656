#include "daemon/parts/node_gpus.h"

#include "common/base/log.h"
#include "daemon/state/parts.h"

namespace nsa::parts {

void GpusOfNodes::take(const std::string& node, const wire::Frame& frame) {
  constexpr size_t kMostGpus = 64, kMostXids = 1000;
  auto told = cluster::read_frame<NodeGpus>(frame);
  if (!told || told->list.size() > kMostGpus || told->new_xids.size() > kMostXids)
    return log::warning("parts", "what a node says of its GPUs is not understood",
                        {{"node", node}, {"why", told ? "too much" : told.error().what}});
  for (const NodeGpu& one : told->list)
    if (one.gpu.uuid.empty() || one.gpu.uuid.find_first_of("/,") != std::string::npos) return;
  nodes_[node] = std::move(told->list);
  for (const auto& [uuid, number] : told->new_xids)
    on_xid_(state::slot_on(node, uuid), number);
}

std::vector<std::pair<std::string, std::string>>
GpusOfNodes::places(const std::string& node) const {
  std::vector<std::pair<std::string, std::string>> places;
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return places;
  for (const NodeGpu& one : found->second)
    if (one.state != wire::GpuStatus::kKeptOut) // the head itself knows which GPUs are in use
      places.emplace_back(one.gpu.uuid, one.state == wire::GpuStatus::kForeign ? one.why : "");
  return places;
}

std::vector<control::RankGpu> GpusOfNodes::of_ranks(const std::vector<std::string>& slots) const {
  std::vector<control::RankGpu> gpus;
  for (size_t rank = 0; rank < slots.size(); ++rank) {
    const std::string node(state::node_of_slot(slots[rank]));
    const auto found = nodes_.find(node);
    if (node.empty() || found == nodes_.end()) continue;
    for (const NodeGpu& one : found->second)
      if (state::slot_on(node, one.gpu.uuid) == slots[rank])
        gpus.push_back({static_cast<Rank>(rank), one.gpu, one.xids});
  }
  return gpus;
}

std::vector<wire::GpuView>
GpusOfNodes::views(const std::function<RunId(const std::string&)>& owner) const {
  std::vector<wire::GpuView> views;
  for (const auto& [node, list] : nodes_)
    for (const NodeGpu& one : list) {
      wire::GpuView& view = views.emplace_back();
      view.node = node;
      view.index = one.gpu.index;
      view.uuid = one.gpu.uuid;
      view.name = one.gpu.name;
      view.memory_bytes = one.gpu.memory_bytes;
      view.run = owner(state::slot_on(node, one.gpu.uuid));
      view.state = view.run.empty() && one.state == wire::GpuStatus::kUsed ? wire::GpuStatus::kFree
                   : !view.run.empty()                                     ? wire::GpuStatus::kUsed
                                                                           : one.state;
      view.why = one.why;
    }
  return views;
}

} // namespace nsa::parts
