// Converts a RunSpec to JSON and back with the field table. nsad stores a resolved spec this way
// and passes it to the worker (spec.json), so the worker needs no TOML parser.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "common/spec/run_spec.h"

namespace nsa::spec {

// Writes every field, defaults included: {"schema":1,"run":{...},...}.
nlohmann::json to_json(const RunSpec& spec);
// Strict: unknown keys and wrong types are errors (one Error names all of them).
Result<RunSpec> from_json(const nlohmann::json& json);

// Returns XXH3-128 of the resolved spec without [run] (name, note and tags do not affect training).
std::string digest(const RunSpec& spec);

} // namespace nsa::spec
