// Parses a command line into a verb and checked arguments, from the verb table. Only parser.cpp
// includes CLI11. Pure, except that global options may come from environment variables.
#pragma once

#include "cli/verb.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::cli {

// Options that every verb takes.
const std::vector<Option>& global_options();

struct Parsed {
  const Verb* verb = nullptr; // null after a request for help
  Arguments arguments;
  Arguments globals;
  // "" selects the overview, "submit" or "ckpt" that verb or noun, "exit-codes" a topic.
  std::optional<std::string> help;
  std::vector<std::string> old_names; // options given by an old name, and what to write instead
};

// The error kInvalidArgument has a hint for what was not understood.
Result<Parsed> parse_command(const std::vector<Verb>& verbs, const std::vector<std::string>& words);

} // namespace nsa::cli
