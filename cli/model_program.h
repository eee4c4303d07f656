// Runs nsa-model, the program beside nsactl that computes with a checkpoint's model. Blocking.
#pragma once

#include "cli/checkpoint_choice.h"
#include "cli/verb.h"
#include "common/wire/model_request.h"

#include <functional>

namespace nsa::cli {

// Options of every verb that computes with a model.
std::vector<Option> computing_options();

// A request for `chosen`, with what computing_options() say. The checkpoint's checksums have been
// compared when it is given: kCorrupt otherwise.
Result<wire::ModelRequest> make_request(const ChosenCheckpoint& chosen, wire::ModelTask task,
                                        const Arguments& arguments);

// `on_line` gets what nsa-model prints before its last line. Its error becomes this one.
Result<wire::ModelEnd> run_model_program(const Context& context, const wire::ModelRequest& request,
                                         const std::function<void(const nlohmann::json&)>& on_line);

// A number in an option of type kText, within [least, most].
Result<double> number_option(const Arguments& arguments, const std::string& name, double otherwise,
                             double least, double most);

} // namespace nsa::cli
