// The one thing that the training loop needs of a model: the loss of a micro-batch. Keeps the loop
// and its tests free of any particular model.
#pragma once

#include "worker/data/batch.h"

#include <ATen/core/TensorBody.h>

#include <functional>
#include <memory>

namespace nsa::train {

// Mean cross-entropy in nats a token over the batch, FP32 scalar on the device, with autograd where
// gradients are enabled.
using BatchLoss = std::function<at::Tensor(const std::shared_ptr<const data::Batch>&)>;

} // namespace nsa::train
