// Which GPUs of the node nsad may give to runs. The inputs are resources.gpus and
// resources.exclude_gpus of nsad.toml, and CUDA_VISIBLE_DEVICES in nsad's own environment. Plain
// values.
#pragma once

#include "daemon/gpu/nvml.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::control {

struct GpuSelection {
  std::vector<std::string> wanted = {"all"};  // indices and UUIDs, or "all"
  std::vector<std::string> excluded;          // UUIDs
  std::optional<std::string> visible_devices; // value in the environment

  // Returns why no run may get the GPU; empty if runs may.
  std::string why_kept_out(const gpu::Gpu& gpu) const;
  // Returns the names in `wanted` that match no GPU of the node.
  std::vector<std::string> missing(const gpu::Gpus& gpus) const;
};

} // namespace nsa::control
