// Bandwidth and latency between each pair of nodes, from the latest `nsactl node probe`. The ledger
// keeps them. may_probe() says which pairs can be measured now. Use it on the loop's thread. There
// is nothing to stop.
#pragma once

#include "common/base/ids.h"
#include "common/wire/node_view.h"
#include "daemon/store/ledger.h"

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace nsa::control {

class NetworkLinks {
public:
  explicit NetworkLinks(store::Ledger& ledger) : ledger_(ledger) {}

  Status load();
  void note(const wire::NetworkProbe& measured);
  // Adds to each node its links to the other nodes of the list. If a node has joined again since
  // the measurement, it may be another machine, so the old figures are left out.
  void add_to(std::vector<wire::NodeView>& nodes) const;

private:
  store::Ledger& ledger_;
  std::map<std::pair<std::string, std::string>, store::NetworkLinkRow> links_;
};

// Errors: kNotFound, kInvalidArgument, and kConflict if a node is not connected, has slots of a run
// (`run_on`), or runs another build.
Status may_probe(const std::vector<wire::NodeView>& nodes, const std::string& node,
                 const std::string& with,
                 const std::function<RunId(const std::string& node)>& run_on);

} // namespace nsa::control
