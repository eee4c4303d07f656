// Completion scripts for shells, made from the verb table, so that they are always complete. Pure.
#pragma once

#include "cli/verb.h"

#include <string>
#include <vector>

namespace nsa::cli {

// `shell` is "bash", "zsh" or "fish". Error: kInvalidArgument for any other.
Result<std::string> completion_script(const std::vector<Verb>& verbs, const std::string& shell);

} // namespace nsa::cli
