// Bandwidth and latency between each pair of nodes, as `nsactl node probe` measured them last. They
// are kept in the ledger. Says also which pairs can be measured now. On the loop's thread. It has
// nothing to stop.
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
  // To each node its links to the others of the list. A node that has joined anew since may be
  // another machine, so older figures are left out.
  void add_to(std::vector<wire::NodeView>& nodes) const;

private:
  store::Ledger& ledger_;
  std::map<std::pair<std::string, std::string>, store::NetworkLinkRow> links_;
};

// kNotFound, kInvalidArgument; kConflict: one is not heard, has places of a run (`run_on`), or is
// of another build.
Status may_probe(const std::vector<wire::NodeView>& nodes, const std::string& node,
                 const std::string& with,
                 const std::function<RunId(const std::string& node)>& run_on);

} // namespace nsa::control
