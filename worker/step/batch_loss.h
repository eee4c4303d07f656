// The only thing that the training loop needs from a model: the loss of a micro-batch. So the loop
// and its tests do not depend on a particular model.
#pragma once

#include "worker/data/batch.h"

#include <ATen/core/TensorBody.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nsa::train {

// Mean cross-entropy in nats a token over the batch, FP32 scalar on the device, with autograd where
// gradients are enabled.
using BatchLoss = std::function<at::Tensor(const std::shared_ptr<const data::Batch>&)>;

// The cross-entropy of each target in nats, FP32 [rows, sequence_length] on the device, no
// autograd.
using TokenLosses = std::function<at::Tensor(const std::shared_ptr<const data::Batch>&)>;

// A batch's loss in two halves, for what is recorded once and replayed: `bring` copies a batch to
// where `loss` finds it every time, without waiting. Memory stays in place while the shape does.
struct StagedLoss {
  std::function<void(const std::shared_ptr<const data::Batch>&)> bring;
  std::function<at::Tensor()> loss;
};

// Figures of a model's layers, beside its loss.
struct LayerFigures {
  std::vector<std::string> names; // "gates/3/selected": "<key in the record>/<key in the map>"
  // A value for each name, FP32 [names] on the device, of what came since the last call; NaN where
  // there was nothing. Nothing waits. Empty where a model has no such figures.
  std::function<at::Tensor()> take;
  // Where set: passes cost something for them, and they are taken behind passes that came while
  // this was on.
  std::function<void(bool on)> watch = {};
};

} // namespace nsa::train
