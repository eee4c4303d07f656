// What the HTTP routes need to know and do about nodes. daemon/nodes implements it, tests fake it.
// All calls happen on the daemon's one thread and return at once.
#pragma once

#include "common/base/result.h"
#include "common/wire/gpu_view.h"
#include "common/wire/node_view.h"
#include "daemon/api/access.h"

#include <string>
#include <vector>

namespace nsa::api {

// Each of the changes leaves a row in the audit, whatever comes of it.
class Nodes {
public:
  virtual ~Nodes() = default;
  // This nsad's own first, then those that have joined it, removed ones among them.
  virtual std::vector<wire::NodeView> list() = 0;
  // By which one node may join, within ten minutes. kConflict: this nsad is no head.
  virtual Result<wire::NodeToken> make_token(const Caller& caller) = 0;
  // kNotFound: no such node.
  virtual Status remove(const std::string& node, const Caller& caller) = 0;
  // Drained: no new run starts there; what runs goes on. kNotFound, kUnsupported.
  virtual Status set_drained(const std::string& node, bool drained, const Caller& caller) = 0;
  // Copies a data set of the head to the node, under the same path; goes on with one that was cut.
  // It is under way when this returns. kNotFound: no such node; kInvalidArgument: no absolute path;
  // kConflict: another one is on its way there.
  virtual Result<wire::DataPush> push_data(const std::string& node, const std::string& path,
                                           const Caller& caller) = 0;
  // How far the last one is. kNotFound: none since nsad was started.
  virtual Result<wire::DataPush> pushed_data(const std::string& node) = 0;

  // Measures the network between two nodes. It is under way when this returns. kNotFound: no such
  // node; kConflict: it is not heard, a run computes there, or another measurement is under way.
  virtual Result<wire::NetworkProbe> probe_network(const std::string& node,
                                                   const wire::NetworkProbeRequest& wanted,
                                                   const Caller& caller) = 0;
  // How the last one is. kNotFound: none since nsad was started.
  virtual Result<wire::NetworkProbe> probed_network(const std::string& node) = 0;

  // Of this nsad's own node, by index.
  virtual std::vector<wire::GpuView> gpus() = 0;
  // From quarantine; `gpu`: an index or a UUID. kNotFound: no such GPU. kConflict: it is not there.
  virtual Result<wire::GpuView> release_gpu(const std::string& gpu, const Caller& caller) = 0;
};

} // namespace nsa::api
