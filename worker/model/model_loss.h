// Connects the training loop to the model: the loss of a batch, the parameters, the layer figures.
#pragma once

#include "nsa_model/model/language_model.h"
#include "worker/optimizer/flat_state.h"
#include "worker/step/batch_loss.h"

#include <optional>

namespace nsa::train {

// The function keeps a reference to `model`. With a separator, attention, blocks and positions
// restart at each document.
BatchLoss make_loss(model::LanguageModel& model, at::Device device,
                    std::optional<int64_t> separator);

// Returns the same loss for each token.
TokenLosses make_token_losses(model::LanguageModel& model, at::Device device,
                              std::optional<int64_t> separator);

// Returns the loss for graphs. It has no document masks, because they would change the launches.
StagedLoss make_staged_loss(model::LanguageModel& model, at::Device device);

// With `initial_values`, initialises the parameters; otherwise a checkpoint fills them.
std::vector<Parameter> parameters_of(const model::LanguageModel& model, bool initial_values = true);

// For metrics: the model's mean gates, and figures about the blocks that its layers select. The
// functions keep a reference to `model`.
LayerFigures gates_of(model::LanguageModel& model);
LayerFigures selection_of(model::LanguageModel& model);

} // namespace nsa::train
