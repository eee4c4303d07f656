// Reads nsad.toml, and fills in the values that depend on the machine.
#pragma once

#include "common/base/result.h"
#include "common/spec/node_spec.h"
#include "common/spec/toml_reader.h"

#include <cstdint>
#include <optional>
#include <string>

namespace nsa::control {

// `path` may not exist (then the defaults) unless `must_exist`. kInvalidArgument: every mistake, a
// line each. `cpu_slots` = 0 becomes one a core, at least 2, so that the quickstart's ranks fit.
Result<spec::NodeSpec> read_node_file(const std::string& path, bool must_exist);

// The group of access.administrators; none where the key is empty. kInvalidArgument: no such group.
Result<std::optional<uint32_t>> administrators_of(const spec::NodeSpec& node);
// The token of metrics.token_file; empty where the key is. Refused: a file that others may read, or
// a token that is too short to be one.
Result<std::string> metrics_token_of(const spec::NodeSpec& node);

} // namespace nsa::control
