// One rank's training state with three parameters, and a loss whose gradients are known. It is
// small enough to be compared with plain loops.
#pragma once

#include "worker/optimizer/optimizer.h"
#include "worker/step/gradient_reducer.h"

#include <ATen/ATen.h>
#include <memory>
#include <string>
#include <vector>

namespace nsa::train {

// Makes three parameters of different shapes. The last one is a gain without weight decay. The
// first and the last one form a group.
inline std::vector<Parameter> make_parameters(at::ScalarType type) {
  at::manual_seed(5);
  std::vector<Parameter> parameters;
  const std::vector<std::vector<int64_t>> shapes = {{8, 3}, {5}, {17}};
  for (size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor initial = at::randn(shapes[i]);
    at::Tensor leaf = at::empty(shapes[i], type).set_requires_grad(true);
    parameters.push_back({"p" + std::to_string(i), leaf, initial, i != 2, i == 1 ? "b" : "a"});
  }
  return parameters;
}

inline spec::TrainSection section() {
  spec::TrainSection t;
  t.steps = 100;
  t.gradient_clip = 1.0;
  t.weight_decay = 0.1;
  return t;
}

// What one rank needs for training.
struct World {
  explicit World(at::ScalarType type, ReducerOptions options = {},
                 std::unique_ptr<comm::Collectives> given = nullptr, size_t bucket_bytes = 16,
                 PrecisionMode mode = PrecisionMode::kMaster, Shard shard = {})
      : state(make_parameters(type), bucket_bytes, 4, mode, shard),
        collectives(given ? std::move(given) : comm::make_single_rank_collectives()),
        reducer(state, *collectives, options) {}
  FlatState state;
  std::unique_ptr<comm::Collectives> collectives;
  GradientReducer reducer;
};

// A loss whose gradient with respect to parameter i is `scale` * weights[i].
inline at::Tensor linear_loss(const FlatState& state, const std::vector<at::Tensor>& weights,
                              double scale, size_t use = 3) {
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i < use; ++i)
    loss = loss + (state.tensor(i).to(at::kFloat) * weights[i]).sum() * scale;
  return loss;
}

inline std::vector<at::Tensor> some_weights(unsigned seed) {
  at::manual_seed(seed);
  return {at::randn({8, 3}), at::randn({5}), at::randn({17})};
}

} // namespace nsa::train
