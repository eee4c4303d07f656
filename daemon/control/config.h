// nsad.toml from its place, with what only the machine can tell filled in.
#pragma once

#include "common/base/result.h"
#include "common/spec/node_spec.h"
#include "common/spec/toml_reader.h"

#include <string>

namespace nsa::control {

// `path` may not exist (then the defaults) unless `must_exist`. kInvalidArgument: every mistake, a
// line each. `cpu_slots` = 0 becomes one a core, at least 2, so that the quickstart's ranks fit.
Result<spec::NodeSpec> read_node_file(const std::string& path, bool must_exist);

} // namespace nsa::control
