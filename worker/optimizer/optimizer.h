// AdamW with decoupled weight decay (Loshchilov, Hutter, "Decoupled Weight Decay Regularization",
// 2019) on the state's masters and moments, with clipping by the global norm. Everything runs on
// the device and the host does not wait. A step whose gradient or loss is not finite changes
// nothing. If each rank updates a shard of the parameters, the optimizer updates that shard only.
// Training thread only.
//
// The arithmetic is FP32 in every mode. Without masters, the weights are converted to FP32 one part
// at a time, updated, and rounded back (PrecisionMode says how).
#pragma once

#include "common/spec/run_spec.h"
#include "worker/optimizer/flat_state.h"

namespace nsa::train {

class Optimizer {
public:
  // `kernels` selects one kernel over the flat buffers if the device has it
  // (nsa_model/ops/update.h). Otherwise LibTorch's operations are used, as always on a CPU.
  Optimizer(FlatState& state, const spec::TrainSection& train, bool kernels = true);

  // Makes one update from state.gradients (summed over ranks, already the mean over the global
  // batch) and state.square_sum(). `loss` is the reduced loss, FP32 scalar. Returns the gradient's
  // L2 norm before clipping, FP32 scalar on the device.
  at::Tensor step(double learning_rate, const at::Tensor& loss);

private:
  struct Group { // parameters with the same weight decay
    double weight_decay = 0;
    std::vector<at::Tensor> values, gradients, first_moments, second_moments, updates;
  };
  // A range of the flat buffers, of whole slots except where the rank's shard cuts one. In modes
  // without masters, `values` and `gradients` of its groups are views of widened_ and narrowed_.
  struct Part {
    Range of;
    Group decayed, plain;
  };
  at::Tensor step_in_one(double learning_rate, const at::Tensor& loss);
  void mark_decayed();
  void plan_parts();
  void add_slot(Part& part, size_t i);
  void load(const Part& part);
  void store(const Part& part);

  FlatState& state_;
  const spec::TrainSection train_;
  const bool in_one_;
  at::Tensor decayed_; // uint8 [elements / kSlotAlignment], if in_one_
  std::vector<Part> parts_;
  at::Tensor widened_;  // FP32 copy of a part's weights, mode sr
  at::Tensor narrowed_; // BF16 copy of a part's gradients, mode pure
};

} // namespace nsa::train
