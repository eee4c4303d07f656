// Implements `nsactl export --format huggingface`, which exports a run's model as a folder.
// export.cpp holds the verb.
#pragma once

#include "cli/verb.h"

namespace nsa::cli {

std::vector<Option> model_options(); // options of --format huggingface besides --out
Result<Exit> run_model_export(const Arguments& arguments, Context& context);

} // namespace nsa::cli
