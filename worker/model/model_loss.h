// Connects the training loop to the model: the loss of a batch, the parameters, the gates.
#pragma once

#include "nsa_model/model/language_model.h"
#include "worker/optimizer/flat_state.h"
#include "worker/step/batch_loss.h"

#include <optional>

namespace nsa::train {

// `model` must outlive the function. With a separator, attention, blocks and positions restart at
// each document.
BatchLoss make_loss(model::LanguageModel& model, at::Device device,
                    std::optional<int64_t> separator);

// Of the same, token by token.
TokenLosses make_token_losses(model::LanguageModel& model, at::Device device,
                              std::optional<int64_t> separator);

// Without documents: where those begin would change the launches.
StagedLoss make_staged_loss(model::LanguageModel& model, at::Device device);

// `initial_values`: draws them; else a checkpoint will bring them.
std::vector<Parameter> parameters_of(const model::LanguageModel& model, bool initial_values = true);

// For metrics: the model's mean gates, and which blocks its layers select. `model` must outlive
// them.
LayerFigures gates_of(model::LanguageModel& model);
LayerFigures selection_of(model::LanguageModel& model);

} // namespace nsa::train
