// The head's end of data sets that are copied to nodes, one at a time for each node. A copy under
// way is not stored: after a restart of nsad, or a cut, the next call continues it.
//
// All on the loop's thread; data sets are read by `workers`. It stops by being destroyed.
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

  // Under way when this returns. Once more with the same path: how far it is. kConflict: another
  // one is under way.
  Result<wire::DataPush> start(const std::string& node, const std::string& path);
  Result<wire::DataPush> last(const std::string& node) const;
  void take(const std::string& node, const wire::Frame& frame); // kPushed
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
