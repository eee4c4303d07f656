// config.json and generation_config.json: what a run file says of its model, in the words of
// Hugging Face's libraries where they have some. Pure.
#pragma once

#include "common/base/json.h"
#include "common/spec/run_spec.h"

namespace nsa::model_export {

// `type`: "float32" or "bfloat16". `separator`: the id before each document, or nothing.
nlohmann::ordered_json model_config(const spec::RunSpec& spec, const std::string& type,
                                    std::optional<int64_t> separator);
nlohmann::ordered_json generation_config(std::optional<int64_t> separator);

} // namespace nsa::model_export
