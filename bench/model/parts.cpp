#include "bench/model/parts.h"

#include "nsa_model/model/attention_layer.h"
#include "nsa_model/model/cross_entropy.h"
#include "nsa_model/ops/fused.h"

#include <torch/csrc/autograd/autograd.h>

namespace nsa::bench {

namespace {

using at::Tensor;
using Outputs = std::vector<Tensor>;

class Parts {
public:
  Parts(const model::LanguageModel& model, runtime::Runtime& runtime, int64_t rows,
        int64_t sequence, int repeats)
      : model_(model), config_(model.config()), runtime_(runtime), rows_(rows), sequence_(sequence),
        repeats_(repeats),
        options_(at::TensorOptions().dtype(model.compute_dtype()).device(runtime.device())) {}

  double attention_layer() const;
  double attention_kernels() const;
  double mlp() const;
  double loss() const;

private:
  Tensor random(at::IntArrayRef sizes) const {
    return at::randn(sizes, options_).set_requires_grad(true);
  }
  Tensor parameter(const std::string& name) const {
    for (const model::NamedParameter& p : model_.named_parameters())
      if (p.name == name) return p.tensor;
    TORCH_CHECK(false, "no parameter is named ", name);
  }
  // Median milliseconds of compute() and of the gradients of `leaves`.
  template <class Compute> double time(const Outputs& leaves, Compute compute) const {
    Stopwatch watch(runtime_.device());
    Tensor up;
    constexpr int kWarmUp = 2;
    for (int i = 0; i < repeats_ + kWarmUp; ++i) {
      watch.mark();
      const Tensor out = compute();
      if (!up.defined()) up = at::randn_like(out);
      torch::autograd::grad({out}, leaves, {up});
      watch.mark();
    }
    runtime_.synchronize();
    std::vector<double> all;
    for (size_t i = kWarmUp; i < size_t(repeats_) + kWarmUp; ++i)
      all.push_back(watch.milliseconds(2 * i, 2 * i + 1));
    return spread_of(all).median;
  }

  const model::LanguageModel& model_;
  const model::ModelConfig& config_;
  runtime::Runtime& runtime_;
  int64_t rows_, sequence_;
  int repeats_;
  at::TensorOptions options_;
};

double Parts::attention_layer() const {
  Outputs leaves{random({rows_, sequence_, config_.dimension})};
  const model::AttentionLayer layer(config_, [&](const std::string& name) {
    leaves.push_back(parameter("blocks.0.attention." + name));
    return leaves.back();
  });
  model::SequenceContext context;
  const auto tables = options_.dtype(at::kFloat);
  const Tensor angle = at::rand({sequence_, config_.head_dimension / 2}, tables).mul_(6.28);
  context.cos = angle.cos();
  context.sin = angle.sin();
  context.compressed_cos = context.cos;
  context.compressed_sin = context.sin;
  if (config_.attention == model::Attention::kNsa &&
      config_.nsa.compression == model::Compression::kMlp) {
    const int64_t count = reference::compressed_count(sequence_, layer.settings().sizes);
    context.compressed_cos = context.cos.narrow(0, 0, count);
    context.compressed_sin = context.sin.narrow(0, 0, count);
  }
  return time(leaves, [&] { return layer.forward(leaves[0], context); });
}

double Parts::attention_kernels() const {
  const auto heads = [&](int64_t length, int64_t count) {
    return random({rows_, length, count, config_.head_dimension});
  };
  Outputs leaves{heads(sequence_, config_.heads)};
  if (config_.attention == model::Attention::kDense) {
    leaves.push_back(heads(sequence_, config_.kv_groups));
    leaves.push_back(heads(sequence_, config_.kv_groups));
    if (config_.dense_backend == model::DenseAttention::kFused)
      return time(leaves,
                  [&] { return ops::fused_causal_attention(leaves[0], leaves[1], leaves[2]); });
    return time(leaves, [&] {
      return at::scaled_dot_product_attention(leaves[0].transpose(1, 2), leaves[1].transpose(1, 2),
                                              leaves[2].transpose(1, 2), std::nullopt, 0.0, true,
                                              std::nullopt, true);
    });
  }
  const model::AttentionLayer layer(
      config_, [&](const std::string& name) { return parameter("blocks.0.attention." + name); });
  const ops::Settings settings = layer.settings();
  ops::AttentionInputs in;
  in.q = leaves[0];
  for (int b = 0; b < model::kBranchCount; ++b) {
    if (!has_branch(config_.nsa, model::Branch(b))) continue;
    const int64_t keys =
        b == 0 ? reference::compressed_count(sequence_, settings.sizes) : sequence_;
    in.k[b] = heads(keys, config_.kv_groups);
    in.v[b] = heads(keys, config_.kv_groups);
    leaves.insert(leaves.end(), {*in.k[b], *in.v[b]});
  }
  in.gates = at::rand({rows_, sequence_, config_.kv_groups, 3}, options_.dtype(at::kFloat));
  return time(leaves, [&] { return ops::attention(in, settings, config_.kernels); });
}

double Parts::mlp() const {
  const Outputs leaves{random({rows_, sequence_, config_.dimension}),
                       parameter("blocks.0.mlp.fc1.weight"), parameter("blocks.0.mlp.fc2.weight")};
  return time(leaves,
              [&] { return ops::mlp(leaves[0], leaves[1], leaves[2], config_.fused_layers); });
}

double Parts::loss() const {
  const Outputs leaves{random({rows_ * sequence_, config_.dimension}),
                       parameter("embedding.weight")};
  const Tensor targets =
      at::randint(config_.vocabulary, {rows_ * sequence_}, options_.dtype(at::kLong));
  return time(leaves, [&] {
    return model::linear_cross_entropy(leaves[0], leaves[1], targets, config_.fused_layers);
  });
}

} // namespace

std::vector<PartTime> time_parts(const model::LanguageModel& model, runtime::Runtime& runtime,
                                 int64_t rows, int64_t sequence, int repeats) {
  const Parts parts(model, runtime, rows, sequence, repeats);
  const auto layers = static_cast<double>(model.config().layers);
  return {{"attention layer", layers * parts.attention_layer()},
          {"attention kernels", layers * parts.attention_kernels()},
          {"MLP", layers * parts.mlp()},
          {"loss", parts.loss()}};
}

} // namespace nsa::bench
