// Which GPUs of the node nsad may give to runs: resources.gpus and resources.exclude_gpus of
// nsad.toml, and the variable CUDA_VISIBLE_DEVICES of nsad's own environment. Plain values.
#pragma once

#include "daemon/gpu/nvml.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

struct GpuSelection {
  std::vector<std::string> wanted = {"all"};  // indices and UUIDs, or "all"
  std::vector<std::string> excluded;          // UUIDs
  std::optional<std::string> visible_devices; // as the environment has it

  // Empty: runs may get it.
  std::string why_kept_out(const gpu::Gpu& gpu) const;
  // Of `wanted`: those that are no GPU of the node.
  std::vector<std::string> missing(const gpu::Gpus& gpus) const;
};

} // namespace nsa::control
