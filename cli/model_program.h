// Runs nsa-model, the program beside nsactl that computes with a checkpoint's model. It blocks.
#pragma once

#include "cli/checkpoint_choice.h"
#include "cli/verb.h"
#include "common/wire/model_request.h"

#include <functional>

namespace nsa::cli {

// Options of all verbs that compute with a model.
std::vector<Option> computing_options();

// Makes a request for `chosen` from the options of computing_options(). It first compares the
// checkpoint with its checksums. Error: kCorrupt if they differ.
Result<wire::ModelRequest> make_request(const ChosenCheckpoint& chosen, wire::ModelTask task,
                                        const Arguments& arguments);

// `on_line` gets the lines that nsa-model prints before its last one. An error of nsa-model is
// returned.
Result<wire::ModelEnd> run_model_program(const Context& context, const wire::ModelRequest& request,
                                         const std::function<void(const nlohmann::json&)>& on_line);

// Parses a number from an option of type kText, within [least, most].
Result<double> number_option(const Arguments& arguments, const std::string& name, double otherwise,
                             double least, double most);

} // namespace nsa::cli
