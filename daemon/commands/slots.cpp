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

int cpu_slots_of(const std::string& node, const std::vector<estimate::NodeSlots>& nodes) {
  const auto found = std::ranges::find(nodes, node, &estimate::NodeSlots::node);
  return found == nodes.end() ? 0 : found->slots;
}

// What a run on several nodes waits for. `open`: free slots, of this node first.
std::string why_not(const estimate::NodesWanted& wanted,
                    const std::vector<estimate::NodeSlots>& open, size_t fewest) {
  if (wanted.per_node == 0) {
    int free = 0;
    for (const estimate::NodeSlots& node : open)
      free += node.slots;
    const std::string slots = "waits for " + counted(wanted.ranks, "CPU slot");
    if (fewest == 0) return slots + ": the nodes that are heard have too few";
    return slots + " on " + counted(static_cast<int>(fewest), "node") + ": " +
           std::to_string(free) + " are free on " + counted(static_cast<int>(open.size()), "node") +
           ", this one included";
  }
  const int first = std::min(wanted.per_node, wanted.ranks);
  if (!open.empty() && open.front().node.empty() && open.front().slots < first)
    return "waits for " + counted(wanted.per_node, "CPU slot") + " of this node";
  const auto ready = std::ranges::count_if(
      open, [&](const estimate::NodeSlots& node) { return node.slots >= wanted.per_node; });
  return "waits for " + counted(wanted.nodes, "node") + " with " +
         counted(wanted.per_node, "free CPU slot") + " each: " + std::to_string(ready) +
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
  if (device == spec::Device::kCuda) return acquire_gpus(run, count);
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

std::vector<std::string> SlotPool::free_cpu_slots(const std::string& node, int capacity,
                                                  int count) const {
  std::vector<std::string> slots;
  for (int i = 0; i < capacity && static_cast<int>(slots.size()) < count; ++i)
    if (std::string slot = state::slot_on(node, "cpu" + std::to_string(i)); !is_taken(slot))
      slots.push_back(std::move(slot));
  return slots;
}

Result<std::vector<std::string>>
SlotPool::acquire_on_nodes(const RunId& run, const estimate::NodesWanted& wanted,
                           const std::map<std::string, int>& others, bool uses_own) {
  if (uses_own && !held_back_.empty()) return fail(ErrorCode::kExhausted, held_back_);
  std::vector<estimate::NodeSlots> all, open;
  if (uses_own) all.push_back({"", cpu_slots_});
  for (const auto& [node, capacity] : others)
    all.push_back({node, capacity});
  for (const auto& [node, capacity] : all)
    open.push_back({node, static_cast<int>(free_cpu_slots(node, capacity, wanted.ranks).size())});
  const auto parts = estimate::place(wanted, open);
  const bool any_nodes = wanted.per_node == 0;
  const size_t fewest = any_nodes ? estimate::place(wanted, all).size() : parts.size();
  if (parts.empty() || parts.size() > fewest)
    return fail(ErrorCode::kExhausted, why_not(wanted, open, fewest));
  std::vector<std::string> slots;
  for (const estimate::NodePart& part : parts)
    for (std::string& slot : free_cpu_slots(part.node, cpu_slots_of(part.node, all), part.ranks))
      slots.push_back(std::move(slot));
  for (const std::string& slot : slots)
    owners_[slot] = run;
  return slots;
}

Result<std::vector<std::string>> SlotPool::acquire_gpus(const RunId& run, int count) {
  if (!locks_)
    return fail(ErrorCode::kUnsupported, "GPUs are switched off here (resources.gpus in nsad.toml)",
                "set resources.gpus = \"all\", or parallel.device = \"cpu\" in the run file");
  std::vector<std::string> slots, reasons;
  for (const gpu::Gpu& g : gpus_.list) {
    if (static_cast<int>(slots.size()) == count) break;
    if (const auto found = quarantine_.find(g.uuid); found != quarantine_.end()) {
      reasons.push_back("GPU " + std::to_string(g.index) + " is in quarantine (" + found->second +
                        "; nsactl gpu release " + std::to_string(g.index) + ")");
      continue;
    }
    if (is_taken(g.uuid)) continue;
    if (const std::string why = selection_.why_kept_out(g); !why.empty()) {
      reasons.push_back("GPU " + std::to_string(g.index) + " is kept out (" + why + ")");
      continue;
    }
    if (!g.processes.empty()) {
      reasons.push_back("GPU " + std::to_string(g.index) + " is used by process " +
                        std::to_string(g.processes.front()));
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
    if (device != spec::Device::kCuda || !locks_) continue;
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
