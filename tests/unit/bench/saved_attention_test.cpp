// Takes the inputs of a layer's attention out of a forward pass, writes and reads them as a file,
// and gives them to the operators.
#include "bench/saved_attention/saved_attention.h"
#include "nsa_model/ops/layer.h"
#include "tests/unit/model/small_model.h"

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace nsa::bench {
namespace {

using at::Tensor;
using model::LanguageModel;
using model::ModelConfig;

class File {
public:
  File()
      : path(std::filesystem::temp_directory_path() / ("nsa-saved-" + std::to_string(::getpid()))) {
  }
  ~File() { std::filesystem::remove(path); }
  const std::filesystem::path path;
};

ops::Settings settings_of(const ModelConfig& c) {
  return {{c.nsa.compression_block, c.nsa.compression_stride, c.nsa.selection_block,
           c.nsa.selected_blocks, c.nsa.window},
          0};
}

// Computes the logits of a one-layer model from the output of its attention.
Tensor logits_behind(const LanguageModel& model, const Tensor& tokens, const Tensor& attended) {
  const auto weight = [&](const std::string& name) {
    for (const model::NamedParameter& p : model.named_parameters())
      if (p.name == name) return p.tensor;
    ADD_FAILURE() << name;
    return Tensor();
  };
  const auto norm = [&](const Tensor& x, const std::string& name) {
    return ops::add_rms_norm(x, std::nullopt, weight(name), model.config().norm_epsilon, false)
        .normed;
  };
  Tensor x = at::embedding(weight("embedding.weight"), tokens) +
             at::linear(attended.flatten(2), weight("blocks.0.attention.w_out.weight"));
  const Tensor hidden =
      at::silu(at::linear(norm(x, "blocks.0.mlp_norm.weight"), weight("blocks.0.mlp.fc1.weight")));
  x = x + at::linear(hidden, weight("blocks.0.mlp.fc2.weight"));
  return at::linear(norm(x, "final_norm.weight"), weight("embedding.weight"));
}

// The tensors that are read back have the same bits. Attention with them gives the model's own
// logits.
TEST(SavedAttention, IsWhatTheModelAttendsWith) {
  c10::NoGradGuard no_grad;
  at::manual_seed(1);
  for (auto [name, config] : model::small_configs()) {
    if (config.attention == model::Attention::kDense) continue;
    config.layers = 1;
    LanguageModel model(config, at::kCPU, at::kDouble, 1);
    model::sharpen(model, 4);
    const Tensor tokens = model::random_tokens(2, model::kSequence);
    const ops::AttentionInputs taken = model.attention_inputs(tokens, std::nullopt, 0);
    EXPECT_EQ(bool(taken.indices), config.nsa.selected) << name;
    const File file;
    ASSERT_TRUE(write_tensors(file.path, to_named(taken)));
    const auto tensors = read_tensors(file.path);
    ASSERT_TRUE(tensors) << tensors.error().what;
    const NamedTensors before = to_named(taken);
    ASSERT_EQ(tensors->size(), before.size()) << name;
    for (const auto& [key, tensor] : before) {
      EXPECT_EQ(tensors->at(key).scalar_type(), tensor.scalar_type()) << name << ' ' << key;
      EXPECT_TRUE(at::equal(tensors->at(key), tensor)) << name << ' ' << key;
    }
    const auto inputs = from_named(*tensors);
    ASSERT_TRUE(inputs) << name << ": " << inputs.error().what;
    const Tensor attended = ops::attention(*inputs, settings_of(config), ops::Kernels::kAten);
    EXPECT_LE(
        model::largest_difference(logits_behind(model, tokens, attended), model.logits(tokens)),
        1e-11)
        << name;
  }
}

TEST(SavedAttention, IsOfTheLayerAskedFor) {
  at::manual_seed(2);
  LanguageModel model(model::small_config(), at::kCPU, at::kFloat, 1);
  model::sharpen(model, 4);
  const Tensor tokens = model::random_tokens(1, model::kSequence);
  const Tensor first = model.attention_inputs(tokens, std::nullopt, 0).q,
               second = model.attention_inputs(tokens, std::nullopt, 1).q;
  EXPECT_GT(model::largest_difference(first, second), 1e-3);
  EXPECT_FALSE(second.requires_grad());
  EXPECT_THROW(model.attention_inputs(tokens, std::nullopt, 2), c10::Error);
}

TEST(SavedAttention, SaysWhatIsWrongWithAFile) {
  const File file;
  EXPECT_EQ(read_tensors(file.path).error().code, ErrorCode::kNotFound);
  std::ofstream(file.path) << "no pickle";
  EXPECT_EQ(read_tensors(file.path).error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(read_tensors(file.path).error().next, testing::HasSubstr("--save-attention"));

  const auto refusal = [](const NamedTensors& tensors) {
    const auto inputs = from_named(tensors);
    return inputs ? "" : inputs.error().what;
  };
  NamedTensors tensors{{"q", at::zeros({1, 8, 4, 6})}};
  EXPECT_EQ(refusal(tensors), "");
  tensors["k_sliding"] = at::zeros({1, 8, 2, 6});
  EXPECT_THAT(refusal(tensors), testing::HasSubstr("no tensor \"v_sliding\""));
  tensors["v_sliding"] = at::zeros({1, 7, 2, 6});
  EXPECT_THAT(refusal(tensors), testing::HasSubstr("\"v_sliding\" that does not fit q"));
  tensors["v_sliding"] = at::zeros({1, 8, 2, 6});
  EXPECT_EQ(refusal(tensors), "");
  tensors["gates"] = at::zeros({1, 8, 3, 3});
  EXPECT_THAT(refusal(tensors), testing::HasSubstr("does not fit together"));
  tensors.erase("q");
  EXPECT_THAT(refusal(tensors), testing::HasSubstr("no tensor \"q\""));
}

} // namespace
} // namespace nsa::bench
