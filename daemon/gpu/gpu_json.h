// A GPU as JSON, for messages between nodes and for the evidence of a hang. Values that a GPU or
// its driver does not report are absent.
#pragma once

#include "common/base/json.h"
#include "daemon/gpu/nvml.h"

namespace nsa::gpu {

void to_json(nlohmann::json& json, const Gpu& gpu);
void from_json(const nlohmann::json& json, Gpu& gpu);

} // namespace nsa::gpu
