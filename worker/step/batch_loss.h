// These functions are all that the training loop needs from a model. So the loop and its tests do
// not depend on a particular model.
#pragma once

#include "worker/data/batch.h"

#include <ATen/core/TensorBody.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nsa::train {

// Returns the mean cross-entropy over the batch in nats a token: an FP32 scalar on the device.
// Autograd records it where gradients are enabled.
using BatchLoss = std::function<at::Tensor(const std::shared_ptr<const data::Batch>&)>;

// Returns the cross-entropy of each target in nats, FP32 [rows, sequence_length] on the device,
// without autograd.
using TokenLosses = std::function<at::Tensor(const std::shared_ptr<const data::Batch>&)>;

// A batch's loss in two halves, for graphs that are captured once and replayed. `bring` copies a
// batch to the place where `loss` reads it, without waiting. The place changes only when the
// batch's shape changes.
struct StagedLoss {
  std::function<void(const std::shared_ptr<const data::Batch>&)> bring;
  std::function<at::Tensor()> loss;
};

// Values that a model reports for each layer, beside its loss.
struct LayerFigures {
  std::vector<std::string> names; // "gates/3/selected": "<key in the record>/<key in the map>"
  // Returns a value for each name, FP32 [names] on the device, measured since the last call. A
  // value is NaN if nothing was measured. The call does not wait. Empty if the model has no such
  // values.
  std::function<at::Tensor()> take;
  // If set, measuring costs time in each pass. The passes measure only while it is on.
  std::function<void(bool on)> watch = {};
};

} // namespace nsa::train
