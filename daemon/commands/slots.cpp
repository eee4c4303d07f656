#include "daemon/commands/slots.h"

#include "common/base/text.h"
#include "daemon/state/parts.h"

#include <algorithm>

namespace nsa::control {

namespace {
bool is_cpu(const std::string& slot) {
  return slot.starts_with("cpu");
}
std::string counted(int n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

int count_of(const NodePlaces& places, spec::Device device) {
  return device == spec::Device::kCuda ? static_cast<int>(places.gpus.size()) : places.cpu_slots;
}

// Says what a run on several nodes waits for. `open` holds the free slots, those of this node
// first.
std::string why_not(const estimate::NodesWanted& wanted, const std::string& slot,
                    const std::vector<estimate::NodeSlots>& open, size_t fewest) {
  if (wanted.per_node == 0) {
    int free = 0;
    for (const estimate::NodeSlots& node : open)
      free += node.slots;
    const std::string slots = "waits for " + counted(wanted.ranks, slot);
    if (fewest == 0) return slots + ": the nodes that are heard have too few";
    return slots + " on " + counted(static_cast<int>(fewest), "node") + ": " +
           std::to_string(free) + " are free on " + counted(static_cast<int>(open.size()), "node") +
           ", this one included";
  }
  const int first = std::min(wanted.per_node, wanted.ranks);
  if (!open.empty() && open.front().node.empty() && open.front().slots < first)
    return "waits for " + counted(wanted.per_node, slot) + " of this node";
  const auto ready = std::ranges::count_if(
      open, [&](const estimate::NodeSlots& node) { return node.slots >= wanted.per_node; });
  return "waits for " + counted(wanted.nodes, "node") + " with " +
         counted(wanted.per_node, "free " + slot) + " each: " + std::to_string(ready) +
         " of them are ready";
}
} // namespace

int SlotPool::capacity(spec::Device device) const {
  if (device != spec::Device::kCuda) return cpu_slots_;
  const auto given_out = [this](const gpu::Gpu& g) { return selection_.why_kept_out(g).empty(); };
  return locks_ ? static_cast<int>(std::count_if(gpus_.list.begin(), gpus_.list.end(), given_out))
                : 0;
}

int SlotPool::used(spec::Device device) const {
  int count = 0;
  for (const auto& [slot, run] : owners_)
    if (state::node_of_slot(slot).empty() && is_cpu(slot) == (device != spec::Device::kCuda))
      ++count;
  return count;
}

Result<std::vector<std::string>> SlotPool::acquire(const RunId& run, spec::Device device,
                                                   int count) {
  if (!held_back_.empty()) return fail(ErrorCode::kExhausted, held_back_);
  if (device == spec::Device::kCuda) return acquire_any_gpus(run, count);
  std::vector<std::string> slots;
  for (int i = 0; i < cpu_slots_ && static_cast<int>(slots.size()) < count; ++i)
    if (const std::string slot = "cpu" + std::to_string(i); !is_taken(slot)) slots.push_back(slot);
  if (static_cast<int>(slots.size()) < count)
    return fail(ErrorCode::kExhausted, "waits for " + counted(count, "CPU slot") + ": " +
                                           std::to_string(cpu_slots_ - used(spec::Device::kCpu)) +
                                           " of " + std::to_string(cpu_slots_) + " are free");
  for (const std::string& slot : slots)
    owners_[slot] = run;
  return slots;
}

std::string SlotPool::why_not_free(const gpu::Gpu& g) const {
  const std::string name = "GPU " + std::to_string(g.index);
  if (const auto found = quarantine_.find(g.uuid); found != quarantine_.end())
    return name + " is in quarantine (" + found->second + "; nsactl gpu release " +
           std::to_string(g.index) + ")";
  if (const std::string why = selection_.why_kept_out(g); !why.empty())
    return name + " is kept out (" + why + ")";
  if (!g.processes.empty())
    return name + " is used by process " + std::to_string(g.processes.front());
  return {};
}

NodePlaces SlotPool::own_places() const {
  NodePlaces places{cpu_slots_, {}};
  for (const gpu::Gpu& g : gpus_.list)
    if (locks_ && selection_.why_kept_out(g).empty())
      places.gpus.emplace_back(g.uuid, why_not_free(g));
  return places;
}

std::vector<std::string> SlotPool::free_slots(const std::string& node, const NodePlaces& places,
                                              spec::Device device) const {
  std::vector<std::string> slots;
  const auto add = [&](const std::string& place) {
    std::string slot = state::slot_on(node, place);
    if (!is_taken(slot) && quarantine_.count(slot) == 0) slots.push_back(std::move(slot));
  };
  if (device != spec::Device::kCuda)
    for (int i = 0; i < places.cpu_slots; ++i)
      add("cpu" + std::to_string(i));
  else
    for (const auto& [uuid, why] : places.gpus)
      if (why.empty()) add(uuid);
  return slots;
}

Result<std::vector<std::string>>
SlotPool::acquire_on_nodes(const RunId& run, spec::Device device,
                           const estimate::NodesWanted& wanted,
                           const std::map<std::string, NodePlaces>& others, bool uses_own) {
  if (uses_own && !held_back_.empty()) return fail(ErrorCode::kExhausted, held_back_);
  std::vector<estimate::NodeSlots> all, open;
  std::map<std::string, std::vector<std::string>> free;
  const auto add = [&](const std::string& node, const NodePlaces& places) {
    all.push_back({node, count_of(places, device)});
    free[node] = free_slots(node, places, device);
    open.push_back({node, static_cast<int>(free[node].size())});
  };
  if (uses_own) add("", own_places());
  for (const auto& [node, places] : others)
    add(node, places);
  const auto parts = estimate::place(wanted, open);
  const bool any_nodes = wanted.per_node == 0;
  const size_t fewest = any_nodes ? estimate::place(wanted, all).size() : parts.size();
  if (parts.empty() || parts.size() > fewest)
    return fail(ErrorCode::kExhausted,
                why_not(wanted, device == spec::Device::kCuda ? "GPU" : "CPU slot", open, fewest));
  std::vector<std::string> slots;
  for (const estimate::NodePart& part : parts) {
    std::vector<std::string>& of_node = free[part.node];
    of_node.resize(static_cast<size_t>(part.ranks));
    if (part.node.empty() && device == spec::Device::kCuda) NSA_TRY(lock_gpus(run, of_node));
    slots.insert(slots.end(), of_node.begin(), of_node.end());
  }
  for (const std::string& slot : slots)
    owners_[slot] = run;
  return slots;
}

Status SlotPool::lock_gpus(const RunId& run, const std::vector<std::string>& uuids) {
  std::vector<std::string> taken; // locks that this call has taken
  for (const std::string& uuid : uuids) {
    if (locks_->holds(uuid)) continue;
    auto locked = locks_->acquire(uuid, run);
    if (locked) {
      taken.push_back(uuid);
      continue;
    }
    for (const std::string& other : taken)
      locks_->release(other);
    return fail(ErrorCode::kExhausted, locked.error().what, locked.error().next);
  }
  return {};
}

Status SlotPool::acquire_gpus(const RunId& run, const std::vector<std::string>& uuids) {
  if (!locks_ && !uuids.empty())
    return fail(ErrorCode::kExhausted, "GPUs are switched off there (resources.gpus in nsad.toml)");
  for (const std::string& uuid : uuids) {
    const RunId owner = owner_of(uuid);
    if (owner == run) continue;
    if (!owner.empty()) return fail(ErrorCode::kExhausted, uuid + " is in use by run " + owner);
    const auto found = std::ranges::find(gpus_.list, uuid, &gpu::Gpu::uuid);
    const std::string why =
        found == gpus_.list.end() ? uuid + " is not there" : why_not_free(*found);
    if (!why.empty()) return fail(ErrorCode::kExhausted, why);
  }
  NSA_TRY(lock_gpus(run, uuids));
  for (const std::string& uuid : uuids)
    owners_[uuid] = run;
  return {};
}

Result<std::vector<std::string>> SlotPool::acquire_any_gpus(const RunId& run, int count) {
  if (!locks_)
    return fail(ErrorCode::kUnsupported, "GPUs are switched off here (resources.gpus in nsad.toml)",
                "set resources.gpus = \"all\", or parallel.device = \"cpu\" in the run file");
  std::vector<std::string> slots, reasons;
  for (const gpu::Gpu& g : gpus_.list) {
    if (static_cast<int>(slots.size()) == count) break;
    if (is_taken(g.uuid) && quarantine_.count(g.uuid) == 0) continue;
    if (std::string why = why_not_free(g); !why.empty()) {
      reasons.push_back(std::move(why));
      continue;
    }
    if (auto locked = locks_->acquire(g.uuid, run); !locked) {
      reasons.push_back(locked.error().what);
      continue;
    }
    slots.push_back(g.uuid);
  }
  if (static_cast<int>(slots.size()) < count) {
    for (const std::string& slot : slots)
      locks_->release(slot);
    std::string why = "waits for " + counted(count, "GPU slot") + ": " +
                      std::to_string(slots.size()) + " of " + std::to_string(gpus_.list.size()) +
                      " are free";
    if (!reasons.empty()) why += " (" + join(reasons, "; ") + ")";
    return fail(ErrorCode::kExhausted, why);
  }
  for (const std::string& slot : slots)
    owners_[slot] = run;
  return slots;
}

RunId SlotPool::owner_of(const std::string& slot) const {
  const auto found = owners_.find(slot);
  return found == owners_.end() ? RunId() : found->second;
}

int SlotPool::quarantined() const {
  return static_cast<int>(
      std::count_if(gpus_.list.begin(), gpus_.list.end(), [this](const gpu::Gpu& g) {
        return quarantine_.count(g.uuid) != 0 && !is_taken(g.uuid) &&
               selection_.why_kept_out(g).empty();
      }));
}

std::vector<wire::GpuView> SlotPool::gpu_views() const {
  using enum wire::GpuStatus;
  std::vector<wire::GpuView> views;
  for (const gpu::Gpu& g : gpus_.list) {
    wire::GpuView& view = views.emplace_back();
    view.index = g.index;
    view.uuid = g.uuid;
    view.name = g.name;
    view.memory_bytes = g.memory_bytes;
    const auto owner = owners_.find(g.uuid);
    if (owner != owners_.end()) view.run = owner->second;
    const auto quarantined = quarantine_.find(g.uuid);
    view.why = selection_.why_kept_out(g);
    if (quarantined != quarantine_.end()) {
      view.state = kQuarantine;
      view.why = quarantined->second;
    } else if (owner != owners_.end()) {
      view.state = kUsed;
    } else if (!view.why.empty()) {
      view.state = kKeptOut;
    } else if (!g.processes.empty()) {
      view.state = kForeign;
      view.why = "used by process " + std::to_string(g.processes.front());
    } else {
      view.state = kFree;
    }
  }
  return views;
}

Status SlotPool::take_back(const RunId& run, spec::Device device,
                           const std::vector<std::string>& slots) {
  Status result;
  for (const std::string& slot : slots) {
    owners_[slot] = run;
    if (device != spec::Device::kCuda || !locks_ || !state::node_of_slot(slot).empty()) continue;
    if (auto locked = locks_->acquire(slot, run); !locked) result = std::move(locked);
  }
  return result;
}

std::vector<std::string> SlotPool::take_back_unknown(const RunId& run, spec::Device device,
                                                     std::vector<std::string> slots) {
  for (std::string& slot : slots) {
    for (int i = 0; device != spec::Device::kCuda && (!is_cpu(slot) || is_taken(slot)); ++i)
      slot = "cpu" + std::to_string(i);
    (void)take_back(run, device, {slot});
  }
  return slots;
}

void SlotPool::set_shim(const RunId& run, const gpu::Holder& holder) {
  for (const auto& [slot, owner] : owners_)
    if (owner == run && locks_ && locks_->holds(slot)) (void)locks_->set_holder(slot, holder);
}

void SlotPool::release(const RunId& run) {
  std::erase_if(owners_, [&](const auto& entry) {
    if (entry.second != run) return false;
    if (locks_) locks_->release(entry.first);
    return true;
  });
}

} // namespace nsa::control
