// The GPUs of a node that has joined: tells the head what they are and how they do, and leases
// those on which parts compute, under the locks of the host. The head decides who gets which. A GPU
// that another nsad or a foreign program has by then is refused with the reason.
//
// All on the loop's thread. It stops by being destroyed.
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

  // Takes the host's locks, and lists the GPUs by `list`. `listed` is told their names, once.
  void start(const control::GpuWatch::ListGpus& list,
             std::function<void(const std::vector<std::string>& names)> listed);
  void tell(); // the head; a cut link: the next welcome tells it
  // For the ranks of the run. `seen`: the GPUs, just listed. kUnavailable: one is somebody else's.
  Status lease(const RunId& run, const std::vector<std::string>& uuids, gpu::Gpus seen);
  // Of a shim that was started by the nsad before.
  void take_back(const RunId& run, const std::vector<std::string>& uuids);
  void set_shim(const RunId& run, const ShimIdentity& shim);
  void release(const RunId& run) { slots_.release(run); }

private:
  Options options_;
  control::SlotPool slots_{0};
  std::vector<std::pair<std::string, uint64_t>> new_xids_; // that the head has not been told
  control::GpuWatch watch_;
};

// UUIDs of the GPUs that the plan's ranks see; none on CPU.
std::vector<std::string> gpus_of(const wire::LaunchPlan& plan);

} // namespace nsa::parts
