// The GPUs of a joined node. It reports them and their state to the head. It leases the GPUs of
// parts under the locks of the host. The head decides which run gets which GPU. If another nsad or
// a foreign program has a GPU by then, the lease is refused with the reason.
//
// All calls are on the loop's thread. To stop it, destroy it.
#pragma once

#include "common/wire/launch_plan.h"
#include "daemon/commands/gpu_watch.h"
#include "daemon/parts/messages.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace nsa::parts {

class LentGpus {
public:
  struct Options {
    spec::NodeResourcesSection resources;
    std::string state_folder;
    std::function<Status(const wire::Frame&)> send;
  };
  LentGpus(net::EventLoop& loop, Options options);

  // Takes the host's locks, and lists the GPUs with `list`. `listed` gets their names, once.
  void start(const control::GpuWatch::ListGpus& list,
             std::function<void(const std::vector<std::string>& names)> listed);
  void tell(); // reports to the head; if the link is cut, the report follows the next welcome
  // Leases GPUs for the ranks of the run. `seen` are the GPUs, just listed. Fails with kUnavailable
  // if a GPU is in use by others.
  Status lease(const RunId& run, const std::vector<std::string>& uuids, gpu::Gpus seen);
  // Restores the lease of a shim that the previous nsad started.
  void take_back(const RunId& run, const std::vector<std::string>& uuids);
  void set_shim(const RunId& run, const ShimIdentity& shim);
  void release(const RunId& run) { slots_.release(run); }

private:
  Options options_;
  control::SlotPool slots_{0};
  // Xid errors that were not reported to the head yet.
  std::vector<std::pair<std::string, uint64_t>> new_xids_;
  control::GpuWatch watch_;
};

// UUIDs of the GPUs that are visible to the plan's ranks; empty on CPU.
std::vector<std::string> gpus_of(const wire::LaunchPlan& plan);

} // namespace nsa::parts
