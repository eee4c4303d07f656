// The operations around attention on a GPU: the fused operations, and the whole model with them.
// Their errors in higher precision are compared with those of ATen operations in BF16.
#include "nsa_model/model/cross_entropy.h"
#include "nsa_model/model/language_model.h"
#include "nsa_model/ops/attention.h"
#include "nsa_model/ops/embedding.h"
#include "nsa_model/ops/fused_support.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/layer.h"
#include "nsa_model/ops/learned_compression.h"
#include "nsa_model/ops/product.h"
#include "nsa_model/ops/scale_gradient.h"
#include "nsa_model/ops/selection_probe.h"
#include "tests/gpu/gpu_host.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdio>

namespace nsa {
namespace {

using at::Tensor;

class Layers : public testing::Test {
protected:
  void SetUp() override {
    if (!fused_missing().empty()) GTEST_SKIP() << fused_missing();
    at::manual_seed(11);
  }
};

at::TensorOptions bf16() {
  return at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
}
Tensor random(at::IntArrayRef sizes) {
  return at::randn(sizes, bf16());
}

double relative(const Tensor& value, const Tensor& reference) {
  const double norm = reference.norm().item<double>();
  const double error = (value.to(at::kDouble) - reference).norm().item<double>();
  return norm > 0 ? error / norm : error;
}

// run(type, fused) returns outputs and gradients. The error of the fused form may be 1.5 times that
// of the composition.
template <class Run> void expect_as_good(Run run) {
  const std::vector<Tensor> exact = run(at::kDouble, false), plain = run(at::kBFloat16, false);
  const std::vector<Tensor> fused = run(at::kBFloat16, true);
  ASSERT_EQ(fused.size(), exact.size());
  for (size_t i = 0; i < fused.size(); ++i) {
    const double error = relative(fused[i], exact[i]);
    EXPECT_LE(error, 1.5 * relative(plain[i], exact[i]) + 1e-6) << "tensor " << i;
  }
}

std::vector<Tensor> leaves_of(const std::vector<Tensor>& values, at::ScalarType type) {
  std::vector<Tensor> leaves;
  for (const Tensor& value : values)
    leaves.push_back(value.to(type).detach().clone().set_requires_grad(true));
  return leaves;
}
std::vector<Tensor> with_gradients(std::vector<Tensor> outputs, const std::vector<Tensor>& leaves) {
  std::vector<Tensor> ups;
  for (size_t i = 0; i < outputs.size(); ++i) // the same gradients in every precision
    ups.push_back((at::arange(outputs[i].numel(), outputs[i].options().dtype(at::kDouble)) *
                   (0.7 + double(i)))
                      .sin()
                      .view(outputs[i].sizes())
                      .to(at::kBFloat16)
                      .to(outputs[i].scalar_type()));
  for (const Tensor& g : torch::autograd::grad(outputs, leaves, ups))
    outputs.push_back(g);
  for (Tensor& t : outputs)
    t = t.detach();
  return outputs;
}

TEST_F(Layers, AddRmsNormIsAsGoodAsTheComposition) {
  const std::vector<Tensor> values{random({3, 1111, 768}), random({3, 1111, 768}),
                                   at::rand({768}, bf16()) + 0.5};
  expect_as_good([&](at::ScalarType type, bool fused) {
    const auto leaves = leaves_of(values, type);
    const ops::NormedSum out = ops::add_rms_norm(leaves[0], leaves[1], leaves[2], 1e-6, fused);
    return with_gradients({out.sum, out.normed}, leaves);
  });
  expect_as_good([&](at::ScalarType type, bool fused) {
    const auto leaves = leaves_of({values[0], values[2]}, type);
    const auto out = ops::add_rms_norm(leaves[0], std::nullopt, leaves[1], 1e-6, fused);
    return with_gradients({out.normed}, leaves);
  });
}

TEST_F(Layers, SplitHeadsIsAsGoodAsTheComposition) {
  const Tensor joined = random({2, 777, 24 * 64});
  const Tensor angle = at::rand({777, 32}, bf16().dtype(at::kFloat)) * 6.28;
  for (const bool mean : {true, false})
    expect_as_good([&](at::ScalarType type, bool fused) {
      const auto leaves = leaves_of({joined}, type);
      const auto table = type == at::kDouble ? at::kDouble : at::kFloat;
      const ops::HeadSets out =
          ops::split_heads(leaves[0], angle.cos().to(table), angle.sin().to(table),
                           {12, 2, 64, mean ? 3 : 2, mean}, fused);
      std::vector<Tensor> outputs{out.q};
      outputs.insert(outputs.end(), out.sets.begin(), out.sets.end());
      if (mean) outputs.push_back(out.mean);
      return with_gradients(outputs, leaves);
    });
}

TEST_F(Layers, ProductsAreAsGoodAsTheComposition) {
  // Whole tiles of the MLP's kernels, a number of rows that is no multiple of a tile, and a width
  // that cuBLASLt does not support.
  for (const auto& [tokens, width] :
       {std::pair{2048, 768}, std::pair{1000, 768}, std::pair{512, 68}}) {
    const std::vector<Tensor> values{random({2, tokens, width}), random({1536, width}) / 16,
                                     random({width, 1536}) / 32};
    expect_as_good([&](at::ScalarType type, bool fused) {
      const auto leaves = leaves_of(values, type);
      return with_gradients({ops::linear(leaves[0], leaves[1], fused),
                             ops::mlp(leaves[0], leaves[1], leaves[2], fused)},
                            leaves);
    });
  }
}

TEST_F(Layers, ProductsAddInFp32) {
  for (const int64_t rows : {4096, 1000, 999}) { // cuBLASLt does not support the last one
    const Tensor a = random({rows, 256}), b = random({rows, 128});
    const Tensor start = at::randn({256, 128}, bf16().dtype(at::kFloat)) * 100;
    const Tensor exact = at::mm(a.to(at::kDouble).t(), b.to(at::kDouble));
    Tensor sum = start.clone();
    ops::product_(sum, a, b, {.a = true}, true); // a new size, and the first call adds to the sum
    EXPECT_LE(relative(sum, start.to(at::kDouble) + exact), 2e-3) << rows;
    ops::product_(sum, a, b, {.a = true}, false);
    EXPECT_LE(relative(sum, exact), rows == 999 ? 3e-3 : 1e-5) << rows;
    ops::product_(sum, a, b, {.a = true}, true);
    EXPECT_LE(relative(sum, exact * 2), rows == 999 ? 3e-3 : 1e-5) << rows;
  }
}

TEST_F(Layers, GroupGatesAreAsGoodAsTheComposition) {
  for (const int64_t tokens : {1, 777, 40000}) { // one tile, some tiles, more tokens than parts
    const std::vector<Tensor> values{random({1, tokens, 2, 64}), random({32, 64}) / 8,
                                     random({3, 32})};
    expect_as_good([&](at::ScalarType type, bool fused) {
      const auto leaves = leaves_of(values, type);
      return with_gradients({ops::group_gates(leaves[0], leaves[1], leaves[2], 0.8, 12, fused)},
                            leaves);
    });
  }
}

TEST_F(Layers, LearnedCompressionIsAsGoodAsTheComposition) {
  // Complete runs of 16 tokens, and last tokens without a block.
  for (const auto& [rows, tokens] : {std::pair{2, 1024}, std::pair{3, 717}}) {
    std::vector<Tensor> values;
    for (int side = 0; side < 2; ++side)
      for (const Tensor& value : {random({rows, tokens, 2, 64}), random({32, 64}) / 4,
                                  random({128, 2048}) / 45, random({64, 128}) / 6})
        values.push_back(value);
    const int64_t count = (tokens - 32) / 16 + 1;
    const Tensor angle = at::rand({count, 32}, bf16().dtype(at::kFloat)) * 6.28;
    expect_as_good([&](at::ScalarType type, bool fused) {
      const auto leaves = leaves_of(values, type);
      const auto table = type == at::kDouble ? at::kDouble : at::kFloat;
      const Tensor cos = angle.cos().to(table), sin = angle.sin().to(table);
      if (fused) {
        const ops::CompressedTokens out =
            ops::learned_compression(leaves[0], leaves[4], {leaves[1], leaves[2], leaves[3]},
                                     {leaves[5], leaves[6], leaves[7]}, cos, sin, 16);
        return with_gradients({out.k, out.v}, leaves);
      }
      const auto side = [&](size_t first) {
        const Tensor blocks = (ops::compression_windows(leaves[first], {}, std::nullopt) +
                               leaves[first + 1].unsqueeze(1))
                                  .transpose(2, 3)
                                  .flatten(3);
        return at::linear(at::silu(at::linear(blocks, leaves[first + 2])), leaves[first + 3]);
      };
      return with_gradients({ops::rope(side(0), cos, sin), side(4)}, leaves);
    });
  }
}

TEST_F(Layers, CrossEntropyIsAsGoodAsTheComposition) {
  const Tensor logits = random({500, 50304}) * 3;
  const Tensor labels = at::randint(50304, {500}, bf16().dtype(at::kLong));
  const Tensor share = at::rand({500}, bf16().dtype(at::kFloat)) / 500;
  expect_as_good([&](at::ScalarType type, bool fused) {
    const Tensor work = logits.to(type).clone();
    const Tensor weights = share.to(type == at::kDouble ? at::kDouble : at::kFloat);
    const Tensor loss = ops::cross_entropy_(work, labels, weights, true, fused);
    return std::vector<Tensor>{loss, work};
  });
}

TEST_F(Layers, LossOverSeveralChunksIsAsGoodAsTheComposition) {
  const std::vector<Tensor> values{random({20000, 256}), random({1024, 256}) / 16};
  const Tensor targets = at::randint(-1, 1024, {20000}, bf16().dtype(at::kLong));
  expect_as_good([&](at::ScalarType type, bool fused) {
    const auto leaves = leaves_of(values, type);
    const Tensor loss = model::linear_cross_entropy(leaves[0], leaves[1], targets, fused);
    return torch::autograd::grad({loss}, leaves);
  });
}

// The loss and gradients of hidden rows and of the table that is both looked up and the output
// layer's weight. The lookup adds nothing to the rows.
std::vector<Tensor> tied_loss(const std::vector<Tensor>& values, const Tensor& targets) {
  const auto leaves = leaves_of(values, at::kBFloat16);
  const auto tied = c10::make_intrusive<ops::TiedGradient>();
  const Tensor hidden = leaves[0] + ops::embedding(leaves[1], at::zeros_like(targets), tied) * 0;
  const Tensor loss = model::linear_cross_entropy(hidden, leaves[1], targets, true, tied);
  auto all = torch::autograd::grad({loss}, leaves);
  all.push_back(loss.detach());
  return all;
}

// Exponentials come from sums in FP32, logits are rounded to BF16. So gradients from exponentials
// are as exact, and those of rows with confident labels more exact.
TEST_F(Layers, LossOfExponentialsIsAsExactAsOfLogits) {
  constexpr int64_t kRows = 2 * 4096 + 200, kConfident = 512;
  const std::vector<Tensor> values{random({kRows, 768}), random({50304, 768}) / 16};
  const Tensor targets = at::randint(-1, 50304, {kRows}, bf16().dtype(at::kLong));
  const Tensor labels = targets.narrow(0, 0, kConfident).clamp_min_(0);
  // Their probability is about 0.9999.
  values[0].narrow(0, 0, kConfident).copy_(values[1].index_select(0, labels) * 6.67);
  const auto from_logits = [&](at::ScalarType type) {
    const auto leaves = leaves_of(values, type);
    const Tensor loss = model::linear_cross_entropy(leaves[0], leaves[1], targets,
                                                    /*fused=*/type == at::kBFloat16);
    auto all = torch::autograd::grad({loss}, leaves);
    all.push_back(loss.detach());
    return all;
  };
  const auto exact = from_logits(at::kDouble), logits = from_logits(at::kBFloat16);
  const auto counted = [] {
    return ops::kernel_counts()[size_t(choice::Part::kLoss)][size_t(choice::Backend::kSm90)];
  };
  const uint64_t before = counted();
  const auto found = tied_loss(values, targets);
  const bool hopper = ops::compute_capability(at::Device(at::kCUDA, 0)) == 90;
  EXPECT_EQ(counted() - before, hopper ? 6 : 0) << "two operations for each of three chunks";
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(found[i].isfinite().all().item<bool>()) << "tensor " << i;
    const double error = relative(found[i], exact[i]), of_logits = relative(logits[i], exact[i]);
    std::printf("tensor %d: error %.2e, from logits %.2e\n", int(i), error, of_logits);
    EXPECT_LE(error, 1.02 * of_logits + 1e-6) << "tensor " << i;
  }
  const auto of_confident = [&](const std::vector<Tensor>& all) {
    return relative(all[0].narrow(0, 0, kConfident), exact[0].narrow(0, 0, kConfident));
  };
  std::printf("confident rows: error %.2e, from logits %.2e\n", of_confident(found),
              of_confident(logits));
  EXPECT_LE(of_confident(found), hopper ? 0.01 : 1.02 * of_confident(logits));
  const auto again = tied_loss(values, targets);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(at::equal(found[i], again[i])) << "tensor " << i;
}

TEST_F(Layers, AttentionPoolsWhatComesUnpooled) {
  constexpr int64_t kSequence = 1500;
  std::vector<Tensor> values{random({2, kSequence, 12, 64})};
  for (int i = 0; i < 6; ++i)
    values.push_back(random({2, kSequence, 2, 64}));
  const Tensor gates = at::rand({2, kSequence, 12, 3}, bf16().dtype(at::kFloat));
  for (const int64_t length : {kSequence, int64_t{20}}) {
    const auto run = [&](bool inside) {
      std::vector<Tensor> cut;
      for (const Tensor& value : values)
        cut.push_back(value.narrow(1, 0, length));
      const auto leaves = leaves_of(cut, at::kBFloat16);
      ops::AttentionInputs in{leaves[0],
                              {leaves[1], leaves[2], leaves[3]},
                              {leaves[4], leaves[5], leaves[6]},
                              gates.narrow(1, 0, length).contiguous(),
                              std::nullopt,
                              std::nullopt};
      if (!inside) {
        in.k[0] = ops::pool(leaves[1], {}, std::nullopt);
        in.v[0] = ops::pool(leaves[4], {}, std::nullopt);
      }
      return with_gradients({ops::attention(in, {}, ops::Kernels::kFused)}, leaves);
    };
    const auto inside = run(true), before = run(false);
    for (size_t i = 0; i < inside.size(); ++i) {
      ASSERT_TRUE(inside[i].isfinite().all().item<bool>()) << "tensor " << i;
      EXPECT_LE(relative(inside[i], before[i].to(at::kDouble)), 0.02) << "tensor " << i;
    }
  }
}

// Moves all parameters into one buffer, in reverse order, as training does.
void lay_side_by_side(const model::LanguageModel& model) {
  int64_t end = 0;
  for (const model::NamedParameter& p : model.named_parameters())
    end += p.tensor.numel();
  const Tensor flat = at::empty({end}, bf16());
  for (const model::NamedParameter& p : model.named_parameters()) {
    end -= p.tensor.numel();
    const Tensor place = flat.narrow(0, end, p.tensor.numel()).view(p.tensor.sizes());
    place.copy_(p.tensor.detach());
    Tensor(p.tensor).set_data(place);
  }
}

// Returns loss and gradients of a model with two layers and the width of the M7C. `side_by_side`:
// parameters share a buffer.
std::vector<Tensor> model_run(model::Attention attention, at::ScalarType type, bool fused,
                              bool joined = false, bool side_by_side = false) {
  model::ModelConfig config;
  config.joined_embedding_gradient = joined;
  config.attention = attention;
  config.layers = 2;
  config.vocabulary = 2048;
  const bool bf16_run = type == at::kBFloat16;
  if (attention == model::Attention::kNsa && bf16_run) config.kernels = model::Kernels::kFused;
  config.fused_layers = fused;
  model::LanguageModel model(config, at::Device(at::kCUDA, 0), type, 7);
  if (!bf16_run) // the same weights in every precision
    for (const model::NamedParameter& p : model.named_parameters())
      p.tensor.detach().copy_(p.tensor.detach().to(at::kBFloat16));
  const Tensor tokens = at::arange(2 * 1536, bf16().dtype(at::kLong)).mul_(7919).remainder_(2048);
  const Tensor batch = tokens.view({2, 1536}), targets = batch.roll({-1}, {1}).contiguous();
  if (side_by_side) lay_side_by_side(model);
  const Tensor loss = model.loss(batch, targets);
  loss.backward();
  std::vector<Tensor> all{loss.detach()};
  for (const model::NamedParameter& p : model.named_parameters())
    all.push_back(p.tensor.grad());
  return all;
}

// The judge is FP32. Its gradients differ from FP64 by 1e-6, and those of BF16 by 5e-3 to 1.6e-2.
// The loss is a single number, and plain BF16 may be close to it by chance: on a CPU it differs by
// 1e-6 to 6e-6.
TEST_F(Layers, WholeModelIsAsGoodAsWithComposedLayers) {
  for (const auto attention : {model::Attention::kNsa, model::Attention::kDense}) {
    const auto exact = model_run(attention, at::kFloat, false);
    const auto plain = model_run(attention, at::kBFloat16, false);
    for (const bool joined : {false, true}) {
      const auto fused = model_run(attention, at::kBFloat16, true, joined);
      for (size_t i = 0; i < exact.size(); ++i) {
        const Tensor wanted = exact[i].to(at::kDouble);
        const double limit = 1.5 * relative(plain[i], wanted) + (i == 0 ? 3e-5 : 0);
        EXPECT_LE(relative(fused[i], wanted), limit)
            << "attention " << int(attention) << " tensor " << i << " joined " << joined;
      }
    }
  }
}

TEST_F(Layers, RepeatBitByBit) {
  for (const bool joined : {false, true}) {
    const auto first = model_run(model::Attention::kNsa, at::kBFloat16, true, joined);
    for (int again = 0; again < 3; ++again) {
      const auto next = model_run(model::Attention::kNsa, at::kBFloat16, true, joined);
      // Tensor 1 is the embedding's gradient, which ATen sums with atomics.
      for (size_t i = joined ? 1 : 2; i < first.size(); ++i)
        EXPECT_TRUE(at::equal(first[i], next[i])) << "tensor " << i << " joined " << joined;
    }
  }
}

TEST_F(Layers, ABufferOfWeightsKeepsTheBits) {
  for (const auto attention : {model::Attention::kNsa, model::Attention::kDense}) {
    const auto apart = model_run(attention, at::kBFloat16, true, true);
    const auto found = model_run(attention, at::kBFloat16, true, true, /*side_by_side=*/true);
    for (size_t i = 0; i < apart.size(); ++i)
      EXPECT_TRUE(at::equal(apart[i], found[i]))
          << "attention " << int(attention) << " tensor " << i;
  }
}

TEST_F(Layers, ScaledGradientsAreRoundedOnce) {
  for (const double factor : {1.0, 0.125, 0.3}) {
    const Tensor x = random({333, 768}), scale = at::full({}, factor, bf16().dtype(at::kFloat));
    const Tensor wanted = (x.to(at::kFloat) * scale).to(at::kBFloat16), composed = x.clone();
    ops::scale_gradient_(x, scale);
    ops::composed::scale_gradient_(composed, scale);
    EXPECT_TRUE(at::equal(x, wanted)) << factor;
    EXPECT_TRUE(at::equal(composed, wanted)) << factor;
  }
}

TEST_F(Layers, SamplesOfAllLayersAtOnceAreThoseOfEach) {
  std::vector<Tensor> blocks, samples, wanted;
  const Tensor rows = at::randint(0, 4096, {128}, bf16().dtype(at::kLong));
  for (int layer = 0; layer < 70; ++layer) {
    blocks.push_back(at::randint(-1, 64, {4096, 2, 16}, bf16().dtype(at::kInt)));
    samples.push_back(at::empty({128, 2, 16}, blocks[0].options()));
    wanted.push_back(at::empty_like(samples[0]));
  }
  static const auto sample = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("nsa::layer_sample_", "")
                                 .typed<void(at::TensorList, at::TensorList, const Tensor&)>();
  sample.call(samples, blocks, rows);
  ops::composed::layer_sample_(wanted, blocks, rows);
  for (size_t layer = 0; layer < samples.size(); ++layer)
    EXPECT_TRUE(at::equal(samples[layer], wanted[layer])) << layer;
}

// Compares the kernel's gradient with that of ATen's lookup plus that of the other use.
TEST_F(Layers, EmbeddingGradientIsTheSumOfBoth) {
  const Tensor ids =
      at::randint(0, 3000, {4096}, bf16().dtype(at::kLong)).square().remainder_(3000);
  const Tensor up = random({4096, 768}), base = at::randn({3000, 768}, bf16().dtype(at::kFloat));
  const Tensor scale = at::full({}, 0.125, base.options());
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("nsa::embedding_gradient", "")
          .typed<Tensor(const Tensor&, const Tensor&, int64_t, const std::optional<Tensor>&,
                        const std::optional<Tensor>&, const std::optional<Tensor>&,
                        const std::optional<Tensor>&, const std::optional<Tensor>&)>();
  const Tensor exact = ops::composed::embedding_gradient(
      up.to(at::kDouble), ids, 3000, base.to(at::kDouble), scale.to(at::kDouble));
  const double best = relative(exact.to(at::kBFloat16), exact);
  EXPECT_LE(relative(op.call(up, ids, 3000, base, scale, {}, {}, {}), exact), 1.01 * best);
  const Tensor others = random({2000, 768}), factors = at::randn({2000}, base.options());
  const Tensor of = ids.narrow(0, 100, 2000) - 1; // some are -1
  const Tensor with_others = ops::composed::embedding_gradient(
      up.to(at::kDouble), ids, 3000, base.to(at::kDouble), scale.to(at::kDouble),
      others.to(at::kDouble), of, factors.to(at::kDouble));
  EXPECT_LE(relative(op.call(up, ids, 3000, base, scale, others, of, factors), with_others),
            1.01 * relative(with_others.to(at::kBFloat16), with_others));
  // The kernel does not support this width, so the operation is composed.
  EXPECT_LE(relative(op.call(up.narrow(1, 0, 24).contiguous(), ids, 3000, {}, {}, {}, {}, {}),
                     ops::composed::embedding_gradient(up.narrow(1, 0, 24).to(at::kDouble), ids,
                                                       3000, {}, {})),
            1.5 * best);
}

} // namespace
} // namespace nsa
