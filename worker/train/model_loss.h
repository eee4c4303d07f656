// Where the training loop meets the model: its loss on a batch, its parameters, its gates.
#pragma once

#include "nsa_model/model/language_model.h"
#include "worker/train/batch_loss.h"
#include "worker/train/flat_state.h"

#include <map>
#include <optional>
#include <string>

namespace nsa::train {

// `model` must outlive the function. With a separator, attention, blocks and positions restart at
// each document.
BatchLoss make_loss(model::LanguageModel& model, at::Device device,
                    std::optional<int64_t> separator);

std::vector<Parameter> parameters_of(const model::LanguageModel& model);

// "<layer>/<branch>" -> mean gate since the last call; empty when nothing was computed since.
std::map<std::string, double> gates_of(model::LanguageModel& model);

} // namespace nsa::train
