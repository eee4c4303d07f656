// Command line -> verb and checked arguments, from the verb table. The one file that includes CLI11
// is parser.cpp. Pure but for reading environment variables of the global options.
#pragma once

#include "cli/verb.h"

#include <optional>
#include <string>
#include <vector>

namespace nsa::cli {

// Options that every verb takes.
const std::vector<Option>& global_options();

struct Parsed {
  const Verb* verb = nullptr; // null: help was asked for, or an error
  Arguments arguments;
  Arguments globals;
  // "": the overview; "submit" or "ckpt": that verb or noun; "exit-codes": a topic.
  std::optional<std::string> help;
  std::vector<std::string> old_names; // options that were given by them, and what to write instead
};

// kInvalidArgument with a hint for whatever is not understood.
Result<Parsed> parse_command(const std::vector<Verb>& verbs, const std::vector<std::string>& words);

} // namespace nsa::cli
