// The places of ranks: CPU slots of this daemon, and GPUs by UUID under locks of the host. The
// class keeps only the bookkeeping and the locks. Use it on one thread.
//
// CPU slots belong to this daemon, because the kernel itself shares cores between users. The kernel
// does not share GPUs. So a lock file guards each GPU, and every nsad of the host respects it
// (daemon/gpu/host_locks.h). nsad does not use a GPU on which a foreign process computes.
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

// The places for ranks on a joined node.
struct NodePlaces {
  int cpu_slots = 0;
  std::vector<std::pair<std::string, std::string>>
      gpus; // UUID, and why no run gets the GPU; empty if it is free
};

class SlotPool {
public:
  explicit SlotPool(int cpu_slots) : cpu_slots_(cpu_slots) {}
  // Sets which GPUs runs may get at all.
  void select_gpus(GpuSelection selection) { selection_ = std::move(selection); }
  // UUID -> why no run gets the GPU until a person releases it. A run that has it keeps it.
  void set_quarantine(std::map<std::string, std::string> quarantine) {
    quarantine_ = std::move(quarantine);
  }
  void use_gpus(gpu::HostLocks locks) { locks_ = std::move(locks); }
  void set_gpus(gpu::Gpus seen) {
    gpus_ = std::move(seen);
    gpus_pending_ = false;
  }
  // Says that the GPUs are being listed. Listing takes the driver seconds, and until then their
  // number is unknown.
  void expect_gpus() { gpus_pending_ = true; }
  bool gpus_pending() const { return gpus_pending_; }
  const gpu::Gpus& gpus() const { return gpus_; }

  // While there is a reason, no run gets new slots; runs keep the slots that they have. An empty
  // text ends this.
  void hold_back(std::string why) { held_back_ = std::move(why); }
  // Grants all slots or none. The error says why the run waits.
  Result<std::vector<std::string>> acquire(const RunId& run, spec::Device device, int count);
  // Grants slots of a run on several nodes, those of this node first if it is used. `others` are
  // the nodes that are connected and take runs. A run that may use any node waits until the fewest
  // possible nodes have room for it. Each node decides itself which nsad of its host gets a GPU
  // (LentGpus).
  Result<std::vector<std::string>> acquire_on_nodes(const RunId& run, spec::Device device,
                                                    const estimate::NodesWanted& wanted,
                                                    const std::map<std::string, NodePlaces>& others,
                                                    bool uses_own = true);
  // Grants these GPUs of this node, all or none. GPUs that the run already has are no obstacle.
  // Error: kExhausted with the reason.
  Status acquire_gpus(const RunId& run, const std::vector<std::string>& uuids);
  // Takes back the slots that a run had before this daemon started. If another process now holds a
  // GPU's lock, this returns an error but still assigns the GPU, because the ranks already use it.
  Status take_back(const RunId& run, spec::Device device, const std::vector<std::string>& slots);
  // Takes the slots of a run that the ledger did not know, so that no other run gets them. If
  // another run has a named CPU slot, a free one replaces it. If none is free, the replacement
  // exceeds the capacity.
  std::vector<std::string> take_back_unknown(const RunId& run, spec::Device device,
                                             std::vector<std::string> slots);
  void set_shim(const RunId& run, const gpu::Holder& holder);
  void release(const RunId& run);

  int capacity(spec::Device device) const; // includes GPUs in quarantine
  int used(spec::Device device) const;
  bool is_quarantined(const std::string& uuid) const { return quarantine_.count(uuid) != 0; }
  int quarantined() const; // quarantined GPUs that no run has
  std::vector<wire::GpuView> gpu_views() const;
  // Returns the run that has the slot; empty if none has.
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
  std::optional<gpu::HostLocks> locks_; // empty if GPUs are not used here
  gpu::Gpus gpus_;
  GpuSelection selection_;
  std::map<std::string, std::string> quarantine_;
  std::map<std::string, RunId> owners_; // slot -> run
};

} // namespace nsa::control
