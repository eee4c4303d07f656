// config.json and generation_config.json: the run file's description of the model, under the names
// of Hugging Face's libraries if they have some. Pure.
#pragma once

#include "common/base/json.h"
#include "common/spec/run_spec.h"

namespace nsa::model_export {

// `type` is "float32" or "bfloat16". `separator` is the id before each document; it may be empty.
nlohmann::ordered_json model_config(const spec::RunSpec& spec, const std::string& type,
                                    std::optional<int64_t> separator);
nlohmann::ordered_json generation_config(std::optional<int64_t> separator);

} // namespace nsa::model_export
