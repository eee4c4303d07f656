// Lists every verb in the order of the help page.
#pragma once

#include "cli/verb.h"

#include <vector>

namespace nsa::cli {

const std::vector<Verb>& all_verbs();

} // namespace nsa::cli
