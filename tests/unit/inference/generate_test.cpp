// Text that is generated with caches equals that of full forward passes. Weights come from the
// given file.
#include "worker/inference/generate.h"
#include "worker/inference/measure.h"
#include "worker/inference/needle_counter.h"
#include "worker/inference/saved_model.h"

#include "common/safetensors/safetensors.h"
#include "tests/support/small_model.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::inference {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

model::ModelConfig tiny(model::Attention attention) {
  model::ModelConfig config = test::small_model(64);
  config.attention = attention;
  return config;
}

model::LanguageModel make(model::Attention attention, uint64_t seed = 5) {
  model::LanguageModel model(tiny(attention), at::kCPU, at::kFloat, seed);
  const at::NoGradGuard no_grad;
  for (const model::NamedParameter& p : model.named_parameters()) {
    at::Tensor weight = p.tensor;
    weight.mul_(3); // makes the choice of a token independent of rounding
  }
  return model;
}

std::vector<int64_t> text(int64_t length) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i)
    ids.push_back((i * i + 7 * i) % 61);
  return ids;
}

std::vector<int64_t> generated(model::LanguageModel& model, const Generation& what) {
  std::vector<int64_t> tokens;
  generate(model, at::kCPU, what, [&](int64_t token) { tokens.push_back(token); });
  return tokens;
}

class Generate : public ::testing::TestWithParam<model::Attention> {};

TEST_P(Generate, GreedyTokensAreThoseOfFullForwardPasses) {
  model::LanguageModel model = make(GetParam());
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  // The last prompt needs two pieces of prefill.
  for (const auto& [length, count] : {std::pair{1, 64}, std::pair{70, 64}, std::pair{600, 8}}) {
    const std::vector<int64_t> prompt = text(length);
    const auto tokens = generated(
        model, {.prompt = prompt, .tokens = count, .vocabulary = 61, .rule = {.temperature = 0}});
    ASSERT_EQ(tokens.size(), static_cast<size_t>(count));
    std::vector<int64_t> all = prompt;
    for (const int64_t token : tokens) {
      const at::Tensor logits = model.logits(at::tensor(all, at::kLong).unsqueeze(0));
      const auto expected =
          logits[0][static_cast<int64_t>(all.size()) - 1].narrow(0, 0, 61).argmax().item<int64_t>();
      ASSERT_EQ(token, expected) << "token " << all.size() - prompt.size() << " after " << length;
      all.push_back(token);
    }
  }
}

// The last documents need two and three pieces. Answers are at the first and at the last token of a
// piece.
TEST_P(Generate, WhatIsSaidAtAnAnswerIsOfAFullForwardPass) {
  model::LanguageModel model = make(GetParam());
  const at::NoGradGuard no_grad;
  at::set_num_threads(1);
  for (const int64_t length : {8, 300, 600, 1100}) {
    NeedleDocument document;
    document.tokens = text(length);
    for (const int64_t answer :
         {int64_t{1}, int64_t{511}, int64_t{512}, int64_t{513}, int64_t{1024}, length - 1})
      if (answer < length) document.answers.push_back(static_cast<size_t>(answer));
    const at::Tensor best = model.logits(at::tensor(document.tokens, at::kLong).unsqueeze(0))[0]
                                .narrow(1, 0, 61)
                                .argmax(1);
    std::vector<int64_t> expected;
    for (const size_t answer : document.answers)
      expected.push_back(best[static_cast<int64_t>(answer) - 1].item<int64_t>());
    int64_t pieces = 0;
    EXPECT_EQ(said_at_answers(model, at::kCPU, document, 61, [&] { ++pieces; }), expected)
        << length;
    EXPECT_EQ(pieces, (length + 511) / 512) << "each piece is told";
  }
}

INSTANTIATE_TEST_SUITE_P(BothAttentions, Generate,
                         ::testing::Values(model::Attention::kNsa, model::Attention::kDense));

TEST(GenerateText, RepeatsFromItsSeedAndEndsWhereTheModelEndsIt) {
  model::LanguageModel model = make(model::Attention::kNsa);
  Generation what{.prompt = text(10), .tokens = 40, .rule = {.temperature = 1, .seed = 7}};
  const auto first = generated(model, what);
  EXPECT_EQ(first.size(), 40u);
  EXPECT_EQ(generated(model, what), first);
  what.rule.seed = 8;
  EXPECT_NE(generated(model, what), first);
  what.rule.seed = 7;
  what.end = first[5];
  const auto until = std::find(first.begin(), first.end(), first[5]) - first.begin();
  std::vector<int64_t> tokens;
  const Generated done =
      generate(model, at::kCPU, what, [&](int64_t token) { tokens.push_back(token); });
  EXPECT_TRUE(done.ended);
  EXPECT_EQ(done.tokens, until);
  EXPECT_EQ(tokens, std::vector<int64_t>(first.begin(), first.begin() + until));
}

TEST(LoadWeights, FillsEveryParameterOrSaysWhichIsWrong) {
  const fs::path folder = fs::temp_directory_path() / ("nsa-load-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  const model::LanguageModel source = make(model::Attention::kNsa);
  std::vector<safetensors::TensorView> tensors;
  for (const model::NamedParameter& p : source.named_parameters())
    tensors.push_back(
        {p.name,
         safetensors::DataType::kF32,
         p.tensor.sizes().vec(),
         {static_cast<const std::byte*>(p.tensor.const_data_ptr()), p.tensor.nbytes()}});
  ASSERT_TRUE(safetensors::write(folder / "model.safetensors", tensors, {}));
  model::LanguageModel target(tiny(model::Attention::kNsa), at::kCPU, at::kFloat, 0,
                              model::Weights::kUnset);
  const auto loaded = load_weights(folder, target);
  ASSERT_TRUE(loaded) << loaded.error().what;
  for (size_t i = 0; i < tensors.size(); ++i)
    EXPECT_TRUE(
        at::equal(source.named_parameters()[i].tensor, target.named_parameters()[i].tensor));

  tensors[3].name = "blocks.0.other.weight";
  ASSERT_TRUE(safetensors::write(folder / "model.safetensors", tensors, {}));
  const auto renamed = load_weights(folder, target);
  ASSERT_FALSE(renamed);
  EXPECT_THAT(renamed.error().what, HasSubstr(source.named_parameters()[3].name));
  tensors.pop_back();
  ASSERT_TRUE(safetensors::write(folder / "model.safetensors", tensors, {}));
  EXPECT_FALSE(load_weights(folder, target));
  fs::remove_all(folder);
}

TEST(LossByPosition, IsOfRangesThatDouble) {
  const auto ranges = by_range({1, 2, 3, 5, 7});
  ASSERT_EQ(ranges.size(), 4u);
  EXPECT_EQ(ranges[0].to, 1);
  EXPECT_EQ(ranges[2].from, 2);
  EXPECT_EQ(ranges[2].to, 4);
  EXPECT_EQ(ranges[2].loss, 4);
  EXPECT_EQ(ranges[3].to, 5);
  EXPECT_EQ(ranges[3].loss, 7);
}

} // namespace
} // namespace nsa::inference
