// GPUs of the head's nodes, as the nodes report them. The slot of a GPU on another node has that
// node's name before a slash: "bee/GPU-...". All calls are on the loop's thread. There is nothing
// to stop.
#pragma once

#include "daemon/commands/slots.h"
#include "daemon/parts/messages.h"
#include "daemon/supervision/evidence.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace nsa::parts {

class GpusOfNodes {
public:
  // Calls `on_xid` when a driver has reported an error.
  explicit GpusOfNodes(std::function<void(const std::string& slot, uint64_t number)> on_xid)
      : on_xid_(std::move(on_xid)) {}

  void take(const std::string& node, const wire::Frame& frame);
  void forget(const std::string& node) { nodes_.erase(node); } // the node is no longer connected
  // UUIDs of the node's GPUs that may be given to runs; the second text is the reason if a GPU may
  // not.
  std::vector<std::pair<std::string, std::string>> places(const std::string& node) const;
  // GPUs of those slots that are on other nodes.
  std::vector<control::RankGpu> of_ranks(const std::vector<std::string>& slots) const;
  // `owner` returns the run that has a slot, as the head knows it.
  std::vector<wire::GpuView> views(const std::function<RunId(const std::string&)>& owner) const;

private:
  std::function<void(const std::string&, uint64_t)> on_xid_;
  std::map<std::string, std::vector<NodeGpu>> nodes_;
};

} // namespace nsa::parts
