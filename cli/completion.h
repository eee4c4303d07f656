// Completion scripts for shells, made from the verb table, so that they never lag behind it. Pure.
#pragma once

#include "cli/verb.h"

#include <string>
#include <vector>

namespace nsa::cli {

// `shell`: "bash", "zsh" or "fish"; kInvalidArgument otherwise.
Result<std::string> completion_script(const std::vector<Verb>& verbs, const std::string& shell);

} // namespace nsa::cli
