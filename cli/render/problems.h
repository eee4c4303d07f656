// Errors as nsactl prints them (style of the error lines: docs/cli.md). Pure.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"

#include <string>
#include <vector>

namespace nsa::render {

// "error: ...\n  hint: ...\n"
std::string error_text(const Error& error);
// "  --> run.toml:14:9  train.steps: ...\n        hint: ...\n" for each.
std::string problems_text(const std::vector<wire::ProblemView>& problems);

} // namespace nsa::render
