// A GPU as JSON, in messages between nodes and in what is kept of a hang. What a GPU or its driver
// does not tell is absent.
#pragma once

#include "common/base/json.h"
#include "daemon/gpu/nvml.h"

namespace nsa::gpu {

void to_json(nlohmann::json& json, const Gpu& gpu);
void from_json(const nlohmann::json& json, Gpu& gpu);

} // namespace nsa::gpu
