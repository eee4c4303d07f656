// Computes the held-out loss of a saved model with the trainer's evaluation. With the same number
// of sequences it gives the loss that the run recorded. Use it from one thread.
#pragma once

#include "worker/inference/saved_model.h"

namespace nsa::inference {

// Fills the fields of ModelEnd that describe an evaluation. It uses `data`, `sequences` and
// `sequence_length` of `request`.
Result<wire::ModelEnd> measure(SavedModel& saved, const wire::ModelRequest& request);

// Averages the mean losses of positions over ranges: position 0, then ranges that double in size.
std::vector<wire::PositionLoss> by_range(const std::vector<double>& mean);

} // namespace nsa::inference
