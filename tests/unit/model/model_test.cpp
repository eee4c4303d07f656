// What the model computes, checked from outside. Where the test asks for equality, it computes in
// FP64.
#include "nsa_model/model/attention_layer.h"
#include "nsa_model/model/dense_backend.h"
#include "nsa_model/model/parameters.h"
#include "nsa_model/ops/attention.h"
#include "tests/support/selection_loops.h"
#include "tests/unit/model/small_model.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace nsa::model {
namespace {

using at::Tensor;

// With tiny tensors, two threads would wait for each other longer than they work.
class OneThread : public testing::Environment {
public:
  void SetUp() override { at::set_num_threads(1); }
};
const auto* const kOneThread = testing::AddGlobalTestEnvironment(new OneThread);

TEST(Parameters, AreAsManyAsCounted) {
  for (const auto& [name, config] : small_configs()) {
    const LanguageModel model(config, at::kCPU, at::kFloat, 1);
    int64_t count = 0;
    for (const NamedParameter& p : model.named_parameters())
      count += p.tensor.numel();
    EXPECT_EQ(count, parameter_count(config)) << name;
  }
}

TEST(Parameters, HaveStableNames) {
  ModelConfig config = small_config();
  config.layers = 1;
  config.nsa.compression = Compression::kMlp;
  const LanguageModel model(config, at::kCPU, at::kFloat, 1);
  std::vector<std::string> names;
  for (const NamedParameter& p : model.named_parameters()) {
    names.push_back(p.name);
    EXPECT_EQ(p.weight_decay, p.tensor.dim() == 2 && !p.name.ends_with("position")) << p.name;
  }
  const std::string a = "blocks.0.attention.";
  EXPECT_THAT(names,
              testing::ElementsAre(
                  "embedding.weight", "blocks.0.attention_norm.weight", a + "w_v_sliding.weight",
                  a + "w_v_selected.weight", a + "w_v_compressed.weight",
                  a + "w_k_compressed.weight", a + "w_k_sliding.weight", a + "w_k_selected.weight",
                  a + "w_q.weight", a + "phi_k.position", a + "phi_k.fc1.weight",
                  a + "phi_k.fc2.weight", a + "phi_v.position", a + "phi_v.fc1.weight",
                  a + "phi_v.fc2.weight", a + "gate.fc1.weight", a + "gate.fc2.weight",
                  a + "w_out.weight", "blocks.0.mlp_norm.weight", "blocks.0.mlp.fc1.weight",
                  "blocks.0.mlp.fc2.weight", "final_norm.weight"));
}

// A buffer with all parameters in reverse order has the joined product's rows as one matrix.
TEST(Parameters, ProjectionsAreInReverseOrderOfTheJoinedRows) {
  for (const auto& [name, config] : small_configs()) {
    const auto joined = projection_rows(config).names;
    const auto specs = parameter_specs(config); // the embedding and a norm come first
    for (size_t i = 0; i < joined.size(); ++i)
      EXPECT_EQ(specs.at(1 + joined.size() - i).name, "blocks.0.attention." + joined[i] + ".weight")
          << name;
  }
}

TEST(Parameters, InitialValuesDependOnSeedAndNameOnly) {
  ModelConfig config = small_config();
  config.vocabulary = 3000; // enough elements to be divided among several threads
  const LanguageModel one(config, at::kCPU, at::kFloat, 7);
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  const LanguageModel same(config, at::kCPU, at::kBFloat16, 7),
      other(config, at::kCPU, at::kFloat, 8);
  at::set_num_threads(threads);
  for (size_t i = 0; i < one.named_parameters().size(); ++i) {
    const NamedParameter& p = one.named_parameters()[i];
    EXPECT_TRUE(at::equal(p.tensor, same.initial_value(p.name))) << p.name;
    EXPECT_TRUE(at::equal(p.tensor.to(at::kBFloat16), same.named_parameters()[i].tensor)) << p.name;
    if (p.tensor.dim() == 2) {
      EXPECT_FALSE(at::equal(p.tensor, other.named_parameters()[i].tensor)) << p.name;
    }
  }
  const Tensor embedding = one.named_parameters()[0].tensor.detach();
  EXPECT_NEAR(embedding.std().item<double>(), 0.02, 2e-4);
  EXPECT_NEAR(embedding.mean().item<double>(), 0, 3e-4);
  // Computed by the formula of docs/design/model.md, independently of this code.
  const Tensor first = initial_values({"w", {4}, 0.5, 0.0, true}, 7);
  const float expected[] = {0.2962118983f, -0.6280655861f, -0.1026383862f, -0.3838025928f};
  for (int i = 0; i < 4; ++i)
    EXPECT_FLOAT_EQ(first[i].item<float>(), expected[i]);
  // Sizes that are divided among many threads, one of them odd. Any number of threads draws the
  // same values.
  for (const int64_t count : {int64_t(1) << 21, (int64_t(1) << 20) + 1}) {
    const ParameterSpec spec{"w", {count}, 0.5, 0.0, true};
    const Tensor alone = initial_values(spec, 7, 1);
    for (const int many : {2, 7, 16, 0})
      EXPECT_TRUE(at::equal(alone, initial_values(spec, 7, many))) << many << " threads";
    EXPECT_NEAR(alone.mean().item<double>(), 0, 4 * 0.5 / std::sqrt(double(count)));
    EXPECT_NEAR(alone.std().item<double>(), 0.5, 4 * 0.5 / std::sqrt(2.0 * double(count)));
    // Beyond two standard deviations.
    const Tensor beyond = alone.abs().gt(1.0).to(at::kDouble).mean();
    EXPECT_NEAR(beyond.item<double>(), 0.0455, 1e-3);
  }
  EXPECT_FALSE(at::equal(one.initial_value("blocks.0.mlp.fc1.weight"),
                         one.initial_value("blocks.1.mlp.fc1.weight")));
}

TEST(Forward, StartsNearTheUniformLoss) {
  at::manual_seed(1);
  for (const auto& [name, config] : small_configs()) {
    LanguageModel model(config, at::kCPU, at::kFloat, 1);
    const Tensor tokens = random_tokens(2, kSequence);
    const Tensor loss = model.loss(tokens, random_tokens(2, kSequence));
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_NEAR(loss.item<double>(), std::log(double(kVocabulary)), 0.1) << name;
  }
}

TEST(Forward, LossIsTheCrossEntropyOfTheLogits) {
  at::manual_seed(2);
  LanguageModel model(small_config(), at::kCPU, at::kDouble, 1);
  sharpen(model, 3);
  const Tensor tokens = random_tokens(3, kSequence);
  Tensor targets = random_tokens(3, kSequence);
  targets.narrow(1, 50, 20).fill_(-1); // these do not count
  const Tensor expected = at::cross_entropy_loss(model.logits(tokens).flatten(0, 1),
                                                 targets.flatten(), {}, at::Reduction::Mean, -1);
  EXPECT_NEAR(model.loss(tokens, targets).item<double>(), expected.item<double>(), 1e-12);
  c10::NoGradGuard no_grad;
  EXPECT_NEAR(model.loss(tokens, targets).item<double>(), expected.item<double>(), 1e-12);

  const Tensor each = at::cross_entropy_loss(model.logits(tokens).flatten(0, 1), targets.flatten(),
                                             {}, at::Reduction::None, -1);
  EXPECT_TRUE(at::allclose(model.token_losses(tokens, targets), each.view_as(targets), 0, 1e-12));

  const Tensor starts = document_starts(tokens, 0);
  const Tensor alone = at::cross_entropy_loss(model.logits(tokens, starts).flatten(0, 1),
                                              targets.flatten(), {}, at::Reduction::None, -1);
  EXPECT_FALSE(at::allclose(alone, each, 0, 1e-6)) << "documents begin within the rows";
  EXPECT_TRUE(
      at::allclose(model.token_losses(tokens, targets, starts), alone.view_as(targets), 0, 1e-12));
}

TEST(Forward, FutureTokensChangeNoPastBit) {
  at::manual_seed(3);
  for (const auto& [name, config] : small_configs()) {
    LanguageModel model(config, at::kCPU, at::kFloat, 1);
    sharpen(model);
    const Tensor tokens = random_tokens(1, kSequence);
    const Tensor before = model.logits(tokens);
    for (const int64_t cut : {1, 40, 99}) {
      Tensor changed = tokens.clone();
      changed.narrow(1, cut, kSequence - cut).copy_(random_tokens(1, kSequence - cut));
      const Tensor after = model.logits(changed);
      EXPECT_TRUE(at::equal(before.narrow(1, 0, cut), after.narrow(1, 0, cut)))
          << name << ' ' << cut;
    }
    Tensor changed = tokens.clone();
    changed[0][50] = (changed[0][50] + 1) % kVocabulary;
    EXPECT_FALSE(at::equal(before.narrow(1, 50, 50), model.logits(changed).narrow(1, 50, 50)))
        << name;
  }
}

TEST(Forward, OnlyRelativePositionsCount) {
  at::manual_seed(4);
  for (const auto& [name, config] : small_configs()) {
    LanguageModel model(config, at::kCPU, at::kDouble, 1);
    sharpen(model);
    const Tensor tokens = random_tokens(1, kSequence);
    const Tensor here = model.logits(tokens);
    EXPECT_LE(largest_difference(here, model.logits(tokens, std::nullopt, 1000)), 1e-8) << name;
    // This shows that the model does depend on the order.
    EXPECT_GT(largest_difference(here.select(1, 99), model.logits(tokens.flip(1)).select(1, 99)),
              1e-3)
        << name;
  }
}

TEST(Forward, DocumentsAreAsAlone) {
  at::manual_seed(5);
  for (const auto& [name, config] : small_configs()) {
    LanguageModel model(config, at::kCPU, at::kDouble, 1);
    sharpen(model);
    Tensor tokens = at::randint(1, kVocabulary, {2, kSequence}, at::kLong);
    for (const auto& [row, end] : {std::pair{0, 4}, {0, 90}, {1, 0}, {1, 1}, {1, 43}})
      tokens[row][end] = 0;
    const Tensor starts = document_starts(tokens, 0);
    const Tensor packed = model.logits(tokens, starts);
    const std::vector<std::vector<int64_t>> begins = {{0, 5, 91, kSequence},
                                                      {0, 1, 2, 44, kSequence}};
    for (int64_t row = 0; row < 2; ++row)
      for (size_t i = 0; i + 1 < begins[row].size(); ++i) {
        const int64_t begin = begins[row][i], length = begins[row][i + 1] - begin;
        const Tensor alone = model.logits(tokens.narrow(0, row, 1).narrow(1, begin, length));
        EXPECT_LE(largest_difference(alone, packed.narrow(0, row, 1).narrow(1, begin, length)),
                  1e-10)
            << name << " row " << row << " document " << i;
      }
  }
}

TEST(Decode, EqualsPrefill) {
  at::manual_seed(6);
  for (const auto& [name, config] : small_configs()) {
    LanguageModel model(config, at::kCPU, at::kDouble, 1);
    sharpen(model);
    const Tensor tokens = random_tokens(2, kSequence);
    const Tensor whole = model.logits(tokens);
    for (const std::vector<int64_t>& pieces :
         {std::vector<int64_t>(kSequence, 1), std::vector<int64_t>{3, 1, 4, 1, 5, 50, 1, 1, 34}}) {
      DecodeState state = model.start_decoding(2, kSequence);
      std::vector<Tensor> parts;
      int64_t begin = 0;
      for (const int64_t piece : pieces) {
        parts.push_back(model.decode(state, tokens.narrow(1, begin, piece)));
        begin += piece;
      }
      EXPECT_EQ(state.length(), kSequence);
      EXPECT_LE(largest_difference(at::cat(parts, 1), whole), 1e-10) << name;
      EXPECT_THROW(model.decode(state, tokens.narrow(1, 0, 1)), c10::Error)
          << "beyond its capacity";
    }
  }
}

// The prompt is one piece, and only its last logits are requested.
TEST(Decode, ContinuesAPromptOfOnePiece) {
  at::manual_seed(61);
  for (const auto& [name, config] : small_configs()) {
    LanguageModel model(config, at::kCPU, at::kDouble, 1);
    sharpen(model);
    EXPECT_FALSE(model.prefills_at_once(2, kSequence)) << "that is of GPUs";
    const Tensor tokens = random_tokens(2, kSequence);
    const Tensor whole = model.logits(tokens);
    for (const int64_t prompt : {2, 8, 33, 90}) {
      DecodeState state = model.start_decoding(2, kSequence);
      std::vector<Tensor> parts{
          model.decode(state, tokens.narrow(1, 0, prompt), LanguageModel::Logits::kLast)};
      EXPECT_EQ(parts[0].size(1), 1);
      for (int64_t at = prompt; at < std::min(prompt + 12, kSequence); ++at)
        parts.push_back(model.decode(state, tokens.narrow(1, at, 1)));
      const Tensor found = at::cat(parts, 1);
      EXPECT_LE(largest_difference(found, whole.narrow(1, prompt - 1, found.size(1))), 1e-10)
          << name << ", " << prompt;
    }
  }
}

// NSA with only the sliding branch, a window over everything and gate 1 equals the dense twin.
TEST(DenseTwin, IsTheWindowOverEverything) {
  at::manual_seed(7);
  ModelConfig config = small_config();
  config.nsa.compressed = config.nsa.selected = false;
  config.nsa.window = kSequence;
  LanguageModel sliding(config, at::kCPU, at::kDouble, 1);
  sharpen(sliding);
  config.attention = Attention::kDense;
  LanguageModel dense(config, at::kCPU, at::kDouble, 2);
  ASSERT_EQ(dense.named_parameters().size(), sliding.named_parameters().size());
  for (size_t i = 0; i < dense.named_parameters().size(); ++i)
    dense.named_parameters()[i].tensor.detach().copy_(
        sliding.named_parameters()[i].tensor.detach());
  const Tensor tokens = random_tokens(2, kSequence);
  EXPECT_LE(largest_difference(dense.logits(tokens), sliding.logits(tokens)), 1e-12);
}

TEST(Kernels, TheReferenceAgrees) {
  at::manual_seed(8);
  for (auto [name, config] : small_configs()) {
    if (config.attention == Attention::kDense) continue;
    LanguageModel aten(config, at::kCPU, at::kDouble, 1);
    config.kernels = Kernels::kReference;
    LanguageModel reference(config, at::kCPU, at::kDouble, 1);
    const Tensor tokens = random_tokens(1, kSequence);
    EXPECT_LE(largest_difference(aten.logits(tokens), reference.logits(tokens)), 1e-12) << name;
  }
}

// The report names what really computes. A CPU lacks some kernels, and the report shows that.
TEST(Kernels, DenseBackendIsTheOneAskedFor) {
  const auto in_effect = [](DenseAttention backend) {
    ModelConfig config = small_config();
    config.attention = Attention::kDense;
    config.dense_backend = backend;
    const LanguageModel model(config, at::kCPU, at::kFloat, 1); // asks LibTorch for this backend
    return libtorch_attention(config.heads, config.kv_groups, config.head_dimension, at::kCPU,
                              at::kFloat)
        .kernel;
  };
  EXPECT_EQ(in_effect(DenseAttention::kMath), choice::SdpaKernel::kMath);
  EXPECT_EQ(in_effect(DenseAttention::kFlash), choice::SdpaKernel::kFlash);
  EXPECT_EQ(in_effect(DenseAttention::kCudnn), choice::SdpaKernel::kNone);
  at::Context& context = at::globalContext();
  context.setSDPUseFlash(true);
  context.setSDPUseMath(true);
  context.setSDPUseMemEfficient(true);
  EXPECT_EQ(in_effect(DenseAttention::kAuto), choice::SdpaKernel::kFlash);
}

TEST(Kernels, FusedIsRefusedWithoutAGpu) {
  for (const Attention attention : {Attention::kNsa, Attention::kDense}) {
    ModelConfig config = small_config();
    config.attention = attention;
    config.kernels = Kernels::kFused;
    config.dense_backend = DenseAttention::kFused;
    try {
      LanguageModel model(config, at::kCPU, at::kFloat, 1);
      FAIL() << "fused kernels were accepted on a CPU";
    } catch (const c10::Error& error) {
      EXPECT_THAT(error.what_without_backtrace(), testing::HasSubstr("needs a CUDA GPU"));
    }
  }
}

TEST(Bf16, StaysNearFp32) {
  at::manual_seed(9);
  for (const auto& [name, config] : small_configs()) {
    LanguageModel wide(config, at::kCPU, at::kFloat, 1), narrow(config, at::kCPU, at::kBFloat16, 1);
    const Tensor tokens = random_tokens(2, kSequence), targets = random_tokens(2, kSequence);
    const Tensor loss = narrow.loss(tokens, targets);
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_NEAR(loss.item<double>(), wide.loss(tokens, targets).item<double>(), 2e-3) << name;
  }
}

TEST(DtypeCheck, PassesWhatIsRight) {
  at::manual_seed(11);
  for (auto [name, config] : small_configs())
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      config.check_dtypes = true;
      config.activation_recompute = type == at::kFloat;
      LanguageModel model(config, at::kCPU, type, 1);
      const Tensor tokens = random_tokens(1, 50);
      EXPECT_NO_THROW(model.loss(tokens, tokens, document_starts(tokens, 0)).backward()) << name;
      DecodeState state = model.start_decoding(1, 50);
      EXPECT_NO_THROW(model.decode(state, tokens)) << name;
    }
}

// Any one parameter has the wrong dtype. Training and decoding both report it.
TEST(DtypeCheck, FindsAPromotion) {
  at::manual_seed(12);
  for (auto [name, config] : small_configs()) {
    config.check_dtypes = true;
    const Tensor tokens = random_tokens(1, 50);
    const size_t count =
        LanguageModel(config, at::kCPU, at::kBFloat16, 1).named_parameters().size();
    for (size_t i = 0; i < count; ++i) {
      LanguageModel model(config, at::kCPU, at::kBFloat16, 1);
      const NamedParameter& p = model.named_parameters()[i];
      p.tensor.set_data(p.tensor.detach().to(at::kFloat));
      std::string said;
      try {
        model.loss(tokens, tokens);
      } catch (const c10::Error& error) {
        said = error.what_without_backtrace();
      }
      EXPECT_THAT(said, testing::HasSubstr("type")) << name << ": " << p.name;
      if (p.tensor.dim() == 1) {
        EXPECT_THAT(said, testing::HasSubstr("dtype discipline: a norm gain")) << p.name;
      }
      DecodeState state = model.start_decoding(1, 50);
      EXPECT_THROW(model.decode(state, tokens), c10::Error) << name << ": " << p.name;
    }
  }
}

TEST(Gates, MeansAreOfTheTrainingPassesSinceTheLastCall) {
  at::manual_seed(10);
  ModelConfig config = small_config();
  const Tensor tokens = random_tokens(2, kSequence), others = random_tokens(2, kSequence);
  const Tensor odd = random_tokens(1, 77);
  config.gate_statistics = true;
  const auto missing = [](const Tensor& means) { return means.isnan().all().item<bool>(); };
  std::vector<Tensor> seen;
  for (const bool recompute : {false, true}) {
    config.activation_recompute = recompute;
    LanguageModel model(config, at::kCPU, at::kFloat, 1);
    EXPECT_TRUE(missing(model.take_gate_means())) << "of no pass";
    model.loss(tokens, tokens).backward();
    {
      const c10::NoGradGuard no_grad; // an evaluation
      model.loss(others, others);
    }
    model.loss(tokens, tokens).backward();
    const Tensor means = model.take_gate_means();
    ASSERT_EQ(means.sizes(), (std::vector<int64_t>{config.layers, 3}));
    EXPECT_LE(largest_difference(means.sum(1), at::ones({config.layers})), 1e-5);
    EXPECT_LE(largest_difference(means, at::full({config.layers, 3}, 1.0 / 3)), 0.1);
    EXPECT_TRUE(missing(model.take_gate_means())) << "taken once";
    model.loss(tokens, tokens).backward();
    EXPECT_TRUE(model.take_gate_means().equal(means)) << "the evaluation counts for nothing";
    model.loss(odd, odd).backward();
    const Tensor of_odd = model.take_gate_means();
    model.loss(tokens, tokens).backward();
    model.loss(odd, odd).backward();
    EXPECT_LE(largest_difference(model.take_gate_means(), (means + of_odd) / 2), 1e-6)
        << "of passes with different lengths";
    seen.push_back(means);
  }
  EXPECT_TRUE(seen[0].equal(seen[1])) << "with recompute";
  config.gate_statistics = false;
  EXPECT_FALSE(LanguageModel(config, at::kCPU, at::kFloat, 1).take_gate_means().defined());
}

// The figures of selected blocks agree with plain loops over the selections of the layers.
TEST(SelectedBlocks, FiguresAreOfTheWatchedTrainingPasses) {
  at::manual_seed(14);
  const Tensor tokens = random_tokens(2, kSequence);
  const std::vector<ops::SelectedRows> rows{{0, kSequence}, {kSequence, kSequence}};
  const auto missing = [](const Tensor& figures) { return figures.isnan().all().item<bool>(); };
  for (ModelConfig config :
       {small_configs()["average, group gate"], small_configs()["mlp, head gate, fused layers"]})
    for (const bool recompute : {false, true}) {
      config.activation_recompute = recompute;
      config.selection_statistics = true;
      LanguageModel model(config, at::kCPU, at::kFloat, 1);
      sharpen(model);
      model.loss(tokens, tokens).backward();
      EXPECT_TRUE(missing(model.take_selection_figures())) << "nobody watched";
      model.watch_selection(true);
      {
        const c10::NoGradGuard no_grad; // an evaluation
        model.loss(tokens, tokens);
      }
      EXPECT_TRUE(missing(model.take_selection_figures()));
      model.loss(tokens, tokens).backward();
      const Tensor figures = model.take_selection_figures();
      ASSERT_EQ(figures.sizes(), (std::vector<int64_t>{config.layers, 2}));
      for (int64_t layer = 0; layer < config.layers; ++layer) {
        const ops::AttentionInputs inputs = model.attention_inputs(tokens, std::nullopt, layer);
        const test::SelectionLoops exact(*inputs.indices, rows, {8, 4, 8, 4, 12});
        EXPECT_FLOAT_EQ(figures[layer][0].item<float>(), float(exact.distance()));
        EXPECT_FLOAT_EQ(figures[layer][1].item<float>(), float(exact.overlap()));
      }
      EXPECT_TRUE(missing(model.take_selection_figures())) << "taken once";
      const Tensor few = random_tokens(2, 32); // every block is selected
      model.loss(few, few).backward();
      EXPECT_TRUE(missing(model.take_selection_figures()));
    }
  EXPECT_FALSE(
      LanguageModel(small_config(), at::kCPU, at::kFloat, 1).take_selection_figures().defined());
}

// At the start of a document, positions and blocks begin at 0 again.
TEST(SelectedBlocks, FiguresAreOfQueriesWithinTheirDocuments) {
  at::manual_seed(15);
  ModelConfig config = small_config();
  config.selection_statistics = true;
  LanguageModel model(config, at::kCPU, at::kFloat, 1);
  sharpen(model);
  const Tensor tokens = random_tokens(2, kSequence), starts = at::zeros_like(tokens);
  starts[0].slice(0, 52).fill_(52);
  starts[1].slice(0, 20).fill_(20);
  starts[1].slice(0, 41).fill_(41);
  model.watch_selection(true);
  model.loss(tokens, tokens, starts).backward();
  const Tensor figures = model.take_selection_figures();
  const std::vector<ops::SelectedRows> documents{
      {0, 52}, {52, 48}, {100, 20}, {120, 21}, {141, 59}};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const ops::AttentionInputs inputs = model.attention_inputs(tokens, starts, layer);
    const test::SelectionLoops exact(*inputs.indices, documents, {8, 4, 8, 4, 12});
    EXPECT_FLOAT_EQ(figures[layer][0].item<float>(), float(exact.distance()));
    EXPECT_FLOAT_EQ(figures[layer][1].item<float>(), float(exact.overlap()));
  }
}

// A temperature of T is equal to a last layer of the gate that is T times smaller.
TEST(Gates, TemperatureDividesTheirLogits) {
  at::manual_seed(13);
  ModelConfig config = small_config();
  LanguageModel plain(config, at::kCPU, at::kDouble, 1);
  config.nsa.gate_temperature = 0.25;
  LanguageModel cold(config, at::kCPU, at::kDouble, 1);
  sharpen(plain);
  sharpen(cold);
  const Tensor tokens = random_tokens(1, kSequence);
  EXPECT_GT(largest_difference(cold.logits(tokens), plain.logits(tokens)), 1e-3);
  for (const NamedParameter& p : cold.named_parameters())
    if (p.name.ends_with("gate.fc2.weight")) p.tensor.detach().mul_(0.25);
  EXPECT_LE(largest_difference(cold.logits(tokens), plain.logits(tokens)), 1e-10);
}

TEST(Documents, BeginBehindTheEndToken) {
  const Tensor tokens = at::tensor({5, 0, 7, 0, 0, 9, 1, 2, 3, 4, 5, 0}, at::kLong).view({2, 6});
  const Tensor expected = at::tensor({0, 0, 2, 2, 4, 5, 0, 0, 0, 0, 0, 0}, at::kLong).view({2, 6});
  EXPECT_TRUE(at::equal(document_starts(tokens, 0), expected));
}

} // namespace
} // namespace nsa::model
