// Help pages and docs/cli.md, both from the verb table. Pure.
#pragma once

#include "cli/verb.h"

#include <string>
#include <vector>

namespace nsa::cli {

// `topic`: "" for the overview, a verb, a noun ("ckpt"), or "exit-codes", "environment", "states".
Result<std::string> help_page(const std::vector<Verb>& verbs, const std::string& topic);

// "nsactl rm RUN... [options]"
std::string usage_of(const Verb& verb);

// docs/cli.md below its hand-written opening.
std::string commands_markdown(const std::vector<Verb>& verbs);

} // namespace nsa::cli
