// The GPUs of this node as nsad knows them: their readings, and the driver's errors since nsad
// started. A thread of gpu::Monitor makes the readings and passes them to the loop's thread, on
// which all functions here run. Destroy the object to stop it.
#pragma once

#include "common/net/event_loop.h"
#include "common/spec/node_spec.h"
#include "daemon/commands/launcher.h"
#include "daemon/commands/slots.h"
#include "daemon/gpu/monitor.h"
#include "daemon/metrics/snapshot.h"
#include "daemon/supervision/evidence.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

class GpuWatch {
public:
  GpuWatch(net::EventLoop& loop, SlotPool& slots, std::function<void(const gpu::Xid&)> on_xid)
      : loop_(loop), slots_(slots), on_xid_(std::move(on_xid)) {}
  using ListGpus = std::function<void(Done<gpu::Gpus>)>;
  // Takes the host's GPU locks and lists the GPUs, for which the driver needs seconds. nsad calls
  // `seen` each time that the slots have new readings, first when the GPUs are listed.
  void start(const spec::NodeResourcesSection& resources, const std::string& state_folder,
             const ListGpus& list, std::function<void()> seen = {});
  // Returns CUDA_VISIBLE_DEVICES of this process.
  static std::optional<std::string> visible_devices();
  // Returns the GPUs of a run's ranks, in the order of the ranks.
  std::vector<RankGpu> gpus_of(const state::Run& run) const;
  // Returns the numbers of the errors that the driver has reported on a GPU.
  std::vector<uint64_t> xids_of(const std::string& uuid) const;
  void add_samples(metrics::DaemonSample& daemon) const;

private:
  void watch();
  void note(const gpu::Xid& xid);

  net::EventLoop& loop_;
  SlotPool& slots_;
  std::function<void(const gpu::Xid&)> on_xid_;
  std::function<void()> seen_;
  std::map<std::string, std::map<uint64_t, uint64_t>> xids_; // UUID -> Xid -> count
  std::unique_ptr<gpu::Monitor> monitor_; // calls this object until it is destroyed
};

} // namespace nsa::control
