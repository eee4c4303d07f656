// `nsactl export --format huggingface`: a run's model as a folder. The verb is export.cpp's.
#pragma once

#include "cli/verb.h"

namespace nsa::cli {

std::vector<Option> model_options(); // what --format huggingface takes beside --out
Result<Exit> run_model_export(const Arguments& arguments, Context& context);

} // namespace nsa::cli
