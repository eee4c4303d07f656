// Reads nsad.toml, and fills in the values that depend on the machine.
#pragma once

#include "common/base/result.h"
#include "common/spec/node_spec.h"
#include "common/spec/toml_reader.h"

#include <cstdint>
#include <optional>
#include <string>

namespace nsa::control {

// `path` may be missing unless `must_exist`; then the defaults apply. The error kInvalidArgument
// lists every mistake on a line of its own. `cpu_slots` = 0 becomes one slot for each core, but at
// least 2, so that the quickstart's ranks fit.
Result<spec::NodeSpec> read_node_file(const std::string& path, bool must_exist);

// Returns the group of access.administrators, or none if the key is empty. Error: kInvalidArgument
// if there is no such group.
Result<std::optional<uint32_t>> administrators_of(const spec::NodeSpec& node);
// Returns the token of metrics.token_file, or an empty text if the key is empty. Fails if others
// may read the file, or if the token is too short.
Result<std::string> metrics_token_of(const spec::NodeSpec& node);

} // namespace nsa::control
