// AdamW with decoupled weight decay (Loshchilov, Hutter, "Decoupled Weight Decay Regularization",
// 2019) on FP32 masters and moments, with global-norm clipping, all on the device: nothing waits
// for the host, and a step whose gradient or loss is not finite changes nothing. Training thread
// only.
#pragma once

#include "common/spec/run_spec.h"
#include "worker/train/flat_state.h"

namespace nsa::train {

class Optimizer {
public:
  Optimizer(FlatState& state, const spec::TrainSection& train);

  // One update from state.gradients (summed over ranks, already the mean over the global batch).
  // `loss` is the reduced loss, FP32 scalar. Returns the gradient's L2 norm before clipping, FP32
  // scalar on the device.
  at::Tensor step(double learning_rate, const at::Tensor& loss);

private:
  struct Group { // parameters that share a weight decay
    double weight_decay = 0;
    std::vector<at::Tensor> masters, gradients, first_moments, second_moments, updates;
  };
  FlatState& state_;
  const spec::TrainSection train_;
  Group decayed_, plain_;
};

} // namespace nsa::train
