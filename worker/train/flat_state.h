// FlatState: all that the optimizer knows about the model, in a few flat buffers on the device,
// laid out by a BucketPlan: FP32 masters, FP32 first and second moments, FP32 gradients with the
// tail, and the weights that the model computes with (BF16, or the masters themselves when it
// computes in FP32). The model's parameters become views into the weights.
//
// Training thread only.
#pragma once

#include "worker/train/bucket_plan.h"

#include <ATen/core/TensorBody.h>

#include <string>
#include <vector>

namespace nsa::train {

// A parameter of the model: the autograd leaf, and its FP32 value before any training.
struct Parameter {
  std::string name;
  at::Tensor tensor;
  at::Tensor initial; // FP32, same shape; any device
  bool weight_decay = true;
};

class FlatState {
public:
  // Moves the parameters' storage into the weights buffer. `tail_count`: words behind the gradients
  // that ranks agree on each step.
  FlatState(std::vector<Parameter> parameters, size_t bucket_bytes, size_t tail_count);

  const BucketPlan& plan() const { return plan_; }
  size_t parameter_count() const { return parameters_.size(); }
  const std::string& name(size_t i) const { return parameters_[i].name; }
  const at::Tensor& tensor(size_t i) const { return parameters_[i].tensor; }
  bool weight_decay(size_t i) const { return parameters_[i].weight_decay; }
  std::vector<int64_t> shape(size_t i) const { return parameters_[i].tensor.sizes().vec(); }

  // Flat buffers, FP32: [parameter_elements], gradients [gradient_elements].
  at::Tensor masters, first_moments, second_moments, gradients;
  // Updates applied so far, FP32 scalar on the device: the t of AdamW's bias correction.
  at::Tensor updates;

  at::Tensor slice(const at::Tensor& flat, size_t i) const; // view of parameter i, its shape
  at::Tensor tail() const;                                  // view, FP32 [tail_count]

  // After the masters have changed: rounds them into the weights. Nothing to do in FP32.
  void publish_masters();

private:
  std::vector<Parameter> parameters_;
  BucketPlan plan_;
  at::Tensor weights_;
};

} // namespace nsa::train
