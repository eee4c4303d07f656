// The head's end of copying data sets to nodes, one at a time for each node. A running copy is not
// stored. After a restart of nsad or a cut link, the next call continues it.
//
// All calls are on the loop's thread; `workers` read data sets. To stop it, destroy it.
#pragma once

#include "common/net/offload.h"
#include "common/wire/node_view.h"
#include "daemon/parts/offers.h"

#include <functional>
#include <map>
#include <string>

namespace nsa::parts {

class DataPushes {
public:
  DataPushes(net::Offload& workers, Offers& offers, Offers::Send send)
      : workers_(workers), offers_(offers), send_(std::move(send)) {}

  // Starts a copy and returns while it runs. Another call with the same path returns its progress.
  // Fails with kConflict if a different copy is running.
  Result<wire::DataPush> start(const std::string& node, const std::string& path);
  Result<wire::DataPush> last(const std::string& node) const;
  void take(const std::string& node, const wire::Frame& frame); // takes a kPushed frame
  void on_lost(const std::string& node);

private:
  struct Pushing {
    wire::DataPush view;
    uint64_t offer = 0;
  };
  void offer(const std::string& node, Push push);
  void end(Pushing& pushing, const Error& why);

  net::Offload& workers_;
  Offers& offers_;
  Offers::Send send_;
  std::map<std::string, Pushing> pushing_; // by node
};

} // namespace nsa::parts
