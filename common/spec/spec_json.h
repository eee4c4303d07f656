// RunSpec <-> JSON through the field table: how nsad stores a resolved spec and hands it to the
// worker (spec.json), which so needs no TOML parser.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "common/spec/run_spec.h"

namespace nsa::spec {

// Every field, defaults included: {"schema":1,"run":{...},...}.
nlohmann::json to_json(const RunSpec& spec);
// Strict: unknown or wrongly typed keys are errors (one Error naming all of them).
Result<RunSpec> from_json(const nlohmann::json& json);

// XXH3-128 of the resolved spec without [run] (name, note and tags do not change what is trained).
std::string digest(const RunSpec& spec);

} // namespace nsa::spec
