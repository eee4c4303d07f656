// FlatState holds all optimizer state of the model in a few flat buffers on the device. A
// BucketPlan gives the layout. The buffers are the values that updates change, both moments, FP32
// gradients with the sync scalars, and the weights of the model. The model's parameters become
// views into the weights.
//
// Training thread only.
#pragma once

#include "nsa_model/ops/update.h"
#include "worker/rules/bucket_plan.h"
#include "worker/rules/precision.h"

#include <ATen/core/TensorBody.h>

#include <optional>
#include <string>
#include <vector>

namespace nsa::train {

// A parameter of the model: the autograd leaf, and its FP32 value before training.
struct Parameter {
  std::string name;
  at::Tensor tensor;
  // FP32, same shape, any device. If undefined, the value is zero until a checkpoint is loaded.
  at::Tensor initial;
  bool weight_decay = true;
  std::string group = {}; // counts in this group's gradient norm; empty: in the global norm only
};

class FlatState {
public:
  // Moves the parameters' storage into the weights buffer. `sync_count` is the number of words
  // after the gradients that ranks reduce each step. Modes without masters take BF16 parameters
  // only. `shard` is the part that this rank updates; the buffers have full size anyway.
  FlatState(std::vector<Parameter> parameters, size_t bucket_bytes, size_t sync_count,
            PrecisionMode mode = PrecisionMode::kMaster, Shard shard = {});

  const BucketPlan& plan() const { return plan_; }
  Shard shard() const { return shard_; }
  // Ranges that this rank updates: one in each bucket, or a single one without shards.
  const std::vector<Range>& own() const { return own_; }
  PrecisionMode mode() const { return mode_; }
  size_t parameter_count() const { return parameters_.size(); }
  const std::string& name(size_t i) const { return parameters_[i].name; }
  const at::Tensor& tensor(size_t i) const { return parameters_[i].tensor; }
  bool weight_decay(size_t i) const { return parameters_[i].weight_decay; }
  std::vector<int64_t> shape(size_t i) const { return parameters_[i].tensor.sizes().vec(); }

  // Flat buffers [parameter_elements]. Updates change the masters and checkpoints keep them.
  // Masters are FP32; in modes without masters they are the BF16 weights themselves. Moments are
  // FP32 (BF16 in mode pure). With shards, other ranks' masters and moments are stale here
  // (StateGatherer).
  at::Tensor masters, first_moments, second_moments;
  at::Tensor gradients; // FP32 [gradient_elements], followed by a word for each group
  // Number of updates so far, FP32 scalar on the device: the t of AdamW's bias correction.
  at::Tensor updates;

  at::Tensor slice(const at::Tensor& flat, size_t i) const; // view of parameter i in its shape
  at::Tensor range(const at::Tensor& flat, Range of) const; // view
  at::Tensor sync_scalars() const;                          // view, FP32 [sync_count]
  // Sum of squares of the reduced gradients, FP32 scalar after the sync scalars.
  at::Tensor square_sum() const;
  // The same for each group's parameters, FP32 [groups()].
  at::Tensor group_square_sums() const;
  // The sync scalars and all sums of squares, in one contiguous range. Its size is the same with or
  // without the groups' sums, so that the order of the other sums never changes.
  at::Tensor agreed_words() const;
  // BF16 weights that are rounded masters; nullopt if the masters are the weights.
  std::optional<at::Tensor> rounded_weights() const;

  // Selects whether updates read BF16 gradients where they lie instead of `gradients`. This is for
  // a step of one micro-batch of one rank, whose gradient is already BF16. It needs BF16 weights,
  // at most ops::kMostPieces parameters and a device with kernels for it (ops/update.h).
  void keep_narrow_gradients(bool narrow);
  bool keeps_narrow_gradients() const { return narrow_.defined(); }
  // Sets the BF16 gradients, by parameter. An undefined one counts as zero.
  void set_narrow_gradients(const std::vector<at::Tensor>& gradients);
  // Returns what updates can read: the gradient itself, or a copy in `gradients` if kernels cannot
  // read it where it lies.
  at::Tensor readable_gradient(size_t i, const at::Tensor& gradient) const;
  const ops::GradientPieces& narrow_gradients() const { return pieces_; }

  // After the masters have changed, rounds them into the weights if these are a separate buffer.
  void publish_masters();
  void publish_own_masters();
  // Stores the sum of squares of this rank's own gradient ranges in square_sum(). `by_group` also
  // fills group_square_sums() in a second pass; square_sum() keeps the same bits.
  void sum_squares(bool by_group = false);
  const std::vector<std::string>& groups() const { return groups_; } // in order of first use

private:
  void plan_groups();

  std::vector<Parameter> parameters_;
  const PrecisionMode mode_;
  const Shard shard_;
  BucketPlan plan_;
  std::vector<Range> own_;
  std::vector<std::string> groups_;
  std::vector<std::vector<Range>> own_of_group_; // this rank's ranges, in buffer order
  at::Tensor weights_;
  at::Tensor narrow_; // BF16 [parameter_elements] in `gradients`; undefined if gradients are FP32
  ops::GradientPieces pieces_; // in buffer order
};

} // namespace nsa::train
