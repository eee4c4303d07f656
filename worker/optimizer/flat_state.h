// FlatState: everything that the optimizer keeps of the model, in a few flat buffers on the device.
// A BucketPlan gives the layout. The buffers are the values that updates change, first and second
// moments, FP32 gradients with the sync scalars, and the weights with which the model computes. The
// model's parameters become views into the weights.
//
// Training thread only.
#pragma once

#include "worker/rules/bucket_plan.h"
#include "worker/rules/precision.h"

#include <ATen/core/TensorBody.h>

#include <optional>
#include <string>
#include <vector>

namespace nsa::train {

// A parameter of the model: the autograd leaf, and its FP32 value before any training.
struct Parameter {
  std::string name;
  at::Tensor tensor;
  // FP32, same shape, any device. Undefined: zero until a checkpoint is loaded.
  at::Tensor initial;
  bool weight_decay = true;
  std::string group = {}; // the one in whose gradient norm it counts; empty: in none but the whole
};

class FlatState {
public:
  // Moves the parameters' storage into the weights buffer. `sync_count`: words behind the gradients
  // that ranks agree on each step. Modes without masters take BF16 parameters only. `shard`: what
  // this rank updates; the buffers are whole all the same.
  FlatState(std::vector<Parameter> parameters, size_t bucket_bytes, size_t sync_count,
            PrecisionMode mode = PrecisionMode::kMaster, Shard shard = {});

  const BucketPlan& plan() const { return plan_; }
  Shard shard() const { return shard_; }
  // What this rank updates: of each bucket a range, or everything as one.
  const std::vector<Range>& own() const { return own_; }
  PrecisionMode mode() const { return mode_; }
  size_t parameter_count() const { return parameters_.size(); }
  const std::string& name(size_t i) const { return parameters_[i].name; }
  const at::Tensor& tensor(size_t i) const { return parameters_[i].tensor; }
  bool weight_decay(size_t i) const { return parameters_[i].weight_decay; }
  std::vector<int64_t> shape(size_t i) const { return parameters_[i].tensor.sizes().vec(); }

  // Flat buffers [parameter_elements]. Masters are what updates are applied to and checkpoints
  // keep: FP32, and in modes without masters the BF16 weights themselves. Moments are FP32 (BF16 in
  // mode pure). With shards, masters and moments of other ranks' are stale (StateGatherer).
  at::Tensor masters, first_moments, second_moments;
  at::Tensor gradients; // FP32 [gradient_elements], and behind them a word for each group
  // Updates applied so far, FP32 scalar on the device: the t of AdamW's bias correction.
  at::Tensor updates;

  at::Tensor slice(const at::Tensor& flat, size_t i) const; // view of parameter i, its shape
  at::Tensor range(const at::Tensor& flat, Range of) const; // view
  at::Tensor sync_scalars() const;                          // view, FP32 [sync_count]
  // Sum of squares of the reduced gradients, FP32 scalar behind the sync scalars.
  at::Tensor square_sum() const;
  // Of each group's parameters alone, FP32 [groups()].
  at::Tensor group_square_sums() const;
  // The sync scalars and both kinds of sums, in one piece. Its size does not depend on whether the
  // groups' sums are computed, so that no other sum is taken in another order.
  at::Tensor agreed_words() const;
  // BF16 weights that masters are rounded into; nothing where the masters are the weights.
  std::optional<at::Tensor> rounded_weights() const;

  // Whether gradients of parameters are kept in BF16, in the first half of their buffer: for a step
  // whose whole gradient is that of one micro-batch, in BF16 already. Only on a device with kernels
  // for it (ops/update.h), with BF16 weights. At first they are not. Makes them zero.
  void keep_narrow_gradients(bool narrow);
  // What updates read [parameter_elements]: the buffer above in FP32, or BF16.
  const at::Tensor& parameter_gradients() const { return parameter_gradients_; }

  // After the masters have changed: rounds them into the weights, where these are others.
  void publish_masters();
  void publish_own_masters();
  // Sum of squares of this rank's own ranges of the gradients, into square_sum(). `by_group`: into
  // group_square_sums() as well, in one more pass over them; square_sum() has the same bits.
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
  std::vector<std::vector<Range>> own_of_group_; // this rank's, in the order of the buffers
  at::Tensor weights_, parameter_gradients_;
};

} // namespace nsa::train
