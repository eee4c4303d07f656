// Held-out loss of a saved model, by the trainer's own evaluation: at the same number of sequences
// it gives the loss that the run recorded. One thread.
#pragma once

#include "worker/inference/saved_model.h"

namespace nsa::inference {

// Fills what a ModelEnd says of an evaluation. `request`: data, sequences, sequence_length.
Result<wire::ModelEnd> measure(SavedModel& saved, const wire::ModelRequest& request);

// Of the mean loss at each position: one entry for position 0, then for ranges that double.
std::vector<wire::PositionLoss> by_range(const std::vector<double>& mean);

} // namespace nsa::inference
