// What the HTTP routes read and change of nodes. daemon/nodes implements this interface, and tests
// fake it. All calls happen on the daemon's one thread and return at once.
#pragma once

#include "common/base/result.h"
#include "common/wire/gpu_view.h"
#include "common/wire/node_view.h"
#include "daemon/api/access.h"

#include <string>
#include <vector>

namespace nsa::api {

// Each change is recorded in the audit, whether it succeeds or not.
class Nodes {
public:
  virtual ~Nodes() = default;
  // Lists this nsad's own node first, then the nodes that have joined it, including removed ones.
  virtual std::vector<wire::NodeView> list() = 0;
  // Returns a token with which one node may join within ten minutes. Error: kConflict if this nsad
  // is no head.
  virtual Result<wire::NodeToken> make_token(const Caller& caller) = 0;
  // Error: kNotFound if there is no such node.
  virtual Status remove(const std::string& node, const Caller& caller) = 0;
  // On a drained node no new run starts; present runs continue. Errors: kNotFound, kUnsupported.
  virtual Status set_drained(const std::string& node, bool drained, const Caller& caller) = 0;
  // Starts to copy a data set of the head to the node, under the same path, or continues an
  // interrupted copy. Errors: kNotFound if there is no such node, kInvalidArgument if the path is
  // not absolute, kConflict if another copy to that node is running.
  virtual Result<wire::DataPush> push_data(const std::string& node, const std::string& path,
                                           const Caller& caller) = 0;
  // Returns the progress of the latest copy. Error: kNotFound if there was none since nsad started.
  virtual Result<wire::DataPush> pushed_data(const std::string& node) = 0;

  // Starts to measure the network between two nodes. Errors: kNotFound if there is no such node,
  // kConflict if a node is not connected, a run computes there, or another measurement is running.
  virtual Result<wire::NetworkProbe> probe_network(const std::string& node,
                                                   const wire::NetworkProbeRequest& wanted,
                                                   const Caller& caller) = 0;
  // Returns the state of the latest measurement. Error: kNotFound if there was none since nsad
  // started.
  virtual Result<wire::NetworkProbe> probed_network(const std::string& node) = 0;

  // Lists the GPUs of this nsad's own node, by index.
  virtual std::vector<wire::GpuView> gpus() = 0;
  // Releases a GPU from quarantine. `gpu` is an index or a UUID. Errors: kNotFound if there is no
  // such GPU, kConflict if it is not in quarantine.
  virtual Result<wire::GpuView> release_gpu(const std::string& gpu, const Caller& caller) = 0;
};

} // namespace nsa::api
