// The places of ranks: CPU slots of this daemon, and GPUs by UUID under locks of the host. Only
// bookkeeping and the locks; one thread.
//
// CPU slots belong to this daemon, since the kernel shares cores between users by itself. It does
// not share GPUs. So a lock file, which every nsad of the host respects, guards each GPU
// (daemon/gpu/host_locks.h). A GPU on which a foreign process computes is not used.
#pragma once

#include "daemon/commands/gpu_selection.h"
#include "daemon/gpu/host_locks.h"
#include "daemon/gpu/nvml.h"

#include "common/base/ids.h"
#include "common/estimate/nodes.h"
#include "common/spec/run_spec.h"
#include "common/wire/gpu_view.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace nsa::control {

// What a node that has joined has for ranks.
struct NodePlaces {
  int cpu_slots = 0;
  std::vector<std::pair<std::string, std::string>>
      gpus; // UUID, and why no run gets it; empty: free
};

class SlotPool {
public:
  explicit SlotPool(int cpu_slots) : cpu_slots_(cpu_slots) {}
  // Which GPUs runs may get at all.
  void select_gpus(GpuSelection selection) { selection_ = std::move(selection); }
  // UUID -> why no run gets it until a person releases it. Who has one keeps it.
  void set_quarantine(std::map<std::string, std::string> quarantine) {
    quarantine_ = std::move(quarantine);
  }
  void use_gpus(gpu::HostLocks locks) { locks_ = std::move(locks); }
  void set_gpus(gpu::Gpus seen) {
    gpus_ = std::move(seen);
    gpus_pending_ = false;
  }
  // Listing GPUs takes the driver seconds; until it is done nobody can say how many there are.
  void expect_gpus() { gpus_pending_ = true; }
  bool gpus_pending() const { return gpus_pending_; }
  const gpu::Gpus& gpus() const { return gpus_; }

  // Nobody gets a slot while there is a reason; who has slots keeps them. Empty: they may again.
  void hold_back(std::string why) { held_back_ = std::move(why); }
  // All or nothing. The error says why the run waits.
  Result<std::vector<std::string>> acquire(const RunId& run, spec::Device device, int count);
  // Slots of a run on several nodes, this one first if it is used. `others`: those nodes that are
  // heard and take runs. A run that may go on any of them waits until as few are free as can take
  // it. Which nsad of its host has a GPU of another node is that node's business (LentGpus).
  Result<std::vector<std::string>> acquire_on_nodes(const RunId& run, spec::Device device,
                                                    const estimate::NodesWanted& wanted,
                                                    const std::map<std::string, NodePlaces>& others,
                                                    bool uses_own = true);
  // These GPUs of this node, all or nothing; those that the run has already are no obstacle.
  // kExhausted: the reason.
  Status acquire_gpus(const RunId& run, const std::vector<std::string>& uuids);
  // Slots that a run had before this daemon started. A GPU whose lock is somebody else's by now is
  // an error, and is used on: the ranks are there already.
  Status take_back(const RunId& run, spec::Device device, const std::vector<std::string>& slots);
  // The slots of a run that was not known: those it names, and for a CPU slot that is another
  // run's by now a free one, beyond the capacity if there is none. So nobody else gets them.
  std::vector<std::string> take_back_unknown(const RunId& run, spec::Device device,
                                             std::vector<std::string> slots);
  void set_shim(const RunId& run, const gpu::Holder& holder);
  void release(const RunId& run);

  int capacity(spec::Device device) const; // those in quarantine among them
  int used(spec::Device device) const;
  bool is_quarantined(const std::string& uuid) const { return quarantine_.count(uuid) != 0; }
  int quarantined() const; // GPUs that nobody has, and nobody gets
  std::vector<wire::GpuView> gpu_views() const;
  // Which run has a slot; empty: none.
  RunId owner_of(const std::string& slot) const;

private:
  Result<std::vector<std::string>> acquire_any_gpus(const RunId& run, int count);
  std::string why_not_free(const gpu::Gpu& gpu) const;
  NodePlaces own_places() const;
  std::vector<std::string> free_slots(const std::string& node, const NodePlaces& places,
                                      spec::Device device) const;
  Status lock_gpus(const RunId& run, const std::vector<std::string>& uuids);
  bool is_taken(const std::string& slot) const { return owners_.count(slot) != 0; }

  int cpu_slots_;
  bool gpus_pending_ = false;
  std::string held_back_;
  std::optional<gpu::HostLocks> locks_; // none: GPUs are not used here
  gpu::Gpus gpus_;
  GpuSelection selection_;
  std::map<std::string, std::string> quarantine_;
  std::map<std::string, RunId> owners_; // slot -> run
};

} // namespace nsa::control
