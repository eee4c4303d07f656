// Errors as nsactl prints them (style of the error lines: docs/cli.md). Pure.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"

#include <string>
#include <vector>

namespace nsa::render {

// "error: ...\n  hint: ...\n"
std::string error_text(const Error& error);
// Each problem with its place; with the text of the file that it is in, the line and a caret, too:
//
//   error: train.micro_batch: must be at least 1, not 0
//     --> run.toml:14:15
//      |
//   14 | micro_batch = 0
//      |               ^
//     hint: ...
std::string problems_text(const std::vector<wire::ProblemView>& problems,
                          const std::string& file_name = {}, const std::string& text = {});

} // namespace nsa::render
