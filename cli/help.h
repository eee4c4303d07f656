// Makes help pages and docs/cli.md from the verb table. Pure.
#pragma once

#include "cli/verb.h"

#include <string>
#include <vector>

namespace nsa::cli {

// `topic` is "" for the overview, a verb, a noun ("ckpt"), or "exit-codes", "environment",
// "states".
Result<std::string> help_page(const std::vector<Verb>& verbs, const std::string& topic);

// Returns a line such as "nsactl rm RUN... [options]".
std::string usage_of(const Verb& verb);

// Returns docs/cli.md without its hand-written beginning.
std::string commands_markdown(const std::vector<Verb>& verbs);

} // namespace nsa::cli
