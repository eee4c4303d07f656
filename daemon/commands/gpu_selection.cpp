#include "daemon/commands/gpu_selection.h"

#include "common/base/text.h"
#include "common/spec/node_spec.h"

#include <algorithm>

namespace nsa::control {

namespace {

bool is_named(const gpu::Gpu& gpu, std::string_view name) {
  return name == gpu.uuid || name == std::to_string(gpu.index);
}

// Reads the variable as CUDA does: a list of indices and prefixes of UUIDs, which ends at the first
// invalid name, such as -1. A prefix may name another GPU than `gpu`, so only text that is neither
// a number nor begins with "GPU-" ends the list.
bool is_visible(const gpu::Gpu& gpu, const std::string& devices) {
  constexpr std::string_view kUuid = "GPU-";
  for (const std::string& part : split(devices, ',')) {
    const std::string name(trim(part));
    const bool is_index =
        !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
    const bool is_uuid = name.starts_with(kUuid) && name.size() > kUuid.size();
    if (!is_index && !is_uuid) return false;
    if (is_named(gpu, name) || (is_uuid && gpu.uuid.starts_with(name))) return true;
  }
  return false;
}

} // namespace

std::string GpuSelection::why_kept_out(const gpu::Gpu& gpu) const {
  if (std::find(excluded.begin(), excluded.end(), gpu.uuid) != excluded.end())
    return "resources.exclude_gpus";
  const bool is_wanted = wanted == std::vector<std::string>{std::string(spec::kAllGpus)} ||
                         std::any_of(wanted.begin(), wanted.end(),
                                     [&](const std::string& name) { return is_named(gpu, name); });
  if (!is_wanted) return "resources.gpus";
  if (visible_devices && !is_visible(gpu, *visible_devices))
    return "CUDA_VISIBLE_DEVICES of nsad is \"" + *visible_devices + "\"";
  return {};
}

std::vector<std::string> GpuSelection::missing(const gpu::Gpus& gpus) const {
  std::vector<std::string> names;
  for (const std::string& name : wanted)
    if (name != spec::kAllGpus &&
        std::none_of(gpus.list.begin(), gpus.list.end(),
                     [&](const gpu::Gpu& gpu) { return is_named(gpu, name); }))
      names.push_back(name);
  return names;
}

} // namespace nsa::control
