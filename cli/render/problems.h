// Formats errors as nsactl prints them (docs/cli.md describes the style). Pure.
#pragma once

#include "common/base/result.h"
#include "common/wire/api_types.h"

#include <string>
#include <vector>

namespace nsa::render {

// "error: ...\n  hint: ...\n"
std::string error_text(const Error& error);
// Prints each problem with its place. If `text` is the problem's file, it also prints the line and
// a caret:
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
