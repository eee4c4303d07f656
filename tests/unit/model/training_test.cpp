// Training of the model: gradients of every parameter, recompute, and a training that must not do
// better than the data allow.
#include "tests/unit/model/small_model.h"

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace nsa::model {
namespace {

using at::Tensor;

std::vector<Tensor> gradients(LanguageModel& model, const Tensor& tokens, const Tensor& targets,
                              const std::optional<Tensor>& document_start = std::nullopt) {
  for (const NamedParameter& p : model.named_parameters())
    p.tensor.mutable_grad().reset();
  model.loss(tokens, targets, document_start).backward();
  std::vector<Tensor> grads;
  for (const NamedParameter& p : model.named_parameters())
    grads.push_back(p.tensor.grad().clone());
  return grads;
}

TEST(Gradients, OfEveryParameterAgreeWithFiniteDifferences) {
  at::manual_seed(1);
  for (const auto& [name, config] : small_configs()) {
    LanguageModel model(config, at::kCPU, at::kDouble, 1);
    sharpen(model, 4);
    const Tensor tokens = at::randint(1, kVocabulary, {2, 60}, at::kLong),
                 targets = random_tokens(2, 60);
    tokens[1][9] = 0;
    const Tensor starts = document_starts(tokens, 0);
    const std::vector<Tensor> grads = gradients(model, tokens, targets, starts);
    c10::NoGradGuard no_grad;
    for (size_t i = 0; i < grads.size(); ++i) {
      const NamedParameter& p = model.named_parameters()[i];
      const Tensor before = p.tensor.detach().clone(), direction = at::randn_like(before);
      const double h = 1e-7; // small, so that no selection changes between the two
      p.tensor.detach().copy_(before + h * direction);
      const double above = model.loss(tokens, targets, starts).item<double>();
      p.tensor.detach().copy_(before - h * direction);
      const double below = model.loss(tokens, targets, starts).item<double>();
      p.tensor.detach().copy_(before);
      const double expected = (grads[i] * direction).sum().item<double>();
      EXPECT_NEAR((above - below) / (2 * h), expected, 1e-6 + 1e-5 * std::abs(expected))
          << name << ": " << p.name;
    }
  }
}

// The same model with the oracle's attention, forward and backward. Gates, phi, projections and
// packed documents are included.
TEST(Gradients, OfEveryParameterAgreeWithTheOracle) {
  at::manual_seed(8);
  for (auto [name, config] : small_configs()) {
    if (config.attention == Attention::kDense) continue;
    LanguageModel aten(config, at::kCPU, at::kDouble, 1);
    config.kernels = Kernels::kReference;
    LanguageModel reference(config, at::kCPU, at::kDouble, 1);
    // A larger factor would make blocks with the same heavy token equal except for rounding.
    sharpen(aten, 2);
    sharpen(reference, 2);
    Tensor tokens = at::randint(1, kVocabulary, {2, kSequence}, at::kLong);
    const Tensor targets = random_tokens(2, kSequence);
    tokens[1][20] = 0;
    for (const std::optional<Tensor>& starts :
         {std::optional<Tensor>(), std::optional<Tensor>(document_starts(tokens, 0))}) {
      const auto found = gradients(aten, tokens, targets, starts),
                 wanted = gradients(reference, tokens, targets, starts);
      for (size_t i = 0; i < found.size(); ++i)
        EXPECT_LE(largest_difference(found[i], wanted[i]),
                  1e-11 * (1 + wanted[i].abs().max().item<double>()))
            << name << ": " << aten.named_parameters()[i].name;
    }
  }
}

TEST(Gradients, ReachEveryParameter) {
  at::manual_seed(2);
  for (const auto& [name, config] : small_configs()) {
    LanguageModel model(config, at::kCPU, at::kFloat, 1);
    const auto grads = gradients(model, random_tokens(2, kSequence), random_tokens(2, kSequence));
    for (size_t i = 0; i < grads.size(); ++i)
      EXPECT_GT(grads[i].abs().max().item<double>(), 0)
          << name << ": " << model.named_parameters()[i].name;
  }
}

TEST(Gradients, AreTheSameWithRecompute) {
  at::manual_seed(3);
  for (auto [name, config] : small_configs()) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      config.activation_recompute = false;
      LanguageModel kept(config, at::kCPU, type, 1);
      config.activation_recompute = true;
      LanguageModel recomputed(config, at::kCPU, type, 1);
      const Tensor tokens = random_tokens(2, kSequence), targets = random_tokens(2, kSequence);
      for (const std::optional<Tensor>& starts :
           {std::optional<Tensor>(), std::optional<Tensor>(document_starts(tokens, 0))}) {
        const auto expected = gradients(kept, tokens, targets, starts),
                   found = gradients(recomputed, tokens, targets, starts);
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_TRUE(at::equal(found[i], expected[i]))
              << name << ": " << kept.named_parameters()[i].name;
      }
    }
  }
}

// Only the fused kernels can keep the results of attention. Others compute them again.
TEST(Gradients, AreTheSameWhereAttentionIsNotToBeRecomputed) {
  at::manual_seed(31);
  for (auto [name, config] : small_configs()) {
    LanguageModel kept(config, at::kCPU, at::kBFloat16, 1);
    config.activation_recompute = true;
    config.recompute_attention = false;
    LanguageModel recomputed(config, at::kCPU, at::kBFloat16, 1);
    const Tensor tokens = random_tokens(2, kSequence), targets = random_tokens(2, kSequence);
    const auto expected = gradients(kept, tokens, targets),
               found = gradients(recomputed, tokens, targets);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(found[i], expected[i]))
          << name << ": " << kept.named_parameters()[i].name;
  }
}

// A retained graph can be used for another backward pass. One that is not retained reports an
// error.
TEST(Recompute, FreesWhatItKeptUnlessTheGraphIsRetained) {
  at::manual_seed(32);
  ModelConfig config = small_config();
  config.activation_recompute = config.fused_layers = true;
  LanguageModel model(config, at::kCPU, at::kFloat, 1);
  const Tensor tokens = random_tokens(1, kSequence), targets = random_tokens(1, kSequence);
  const Tensor weight = model.named_parameters().at(2).tensor;
  const Tensor loss = model.loss(tokens, targets);
  loss.backward({}, /*retain_graph=*/true);
  const Tensor once = weight.grad().clone();
  loss.backward();
  EXPECT_TRUE(at::equal(weight.grad(), 2 * once));
  EXPECT_THROW(loss.backward(), std::exception);
}

// The two gradients of the tied embedding are computed together. The sums are the same, also over
// several micro-batches.
TEST(Gradients, AreTheSameWithTheEmbeddingsJoined) {
  at::manual_seed(5);
  for (auto [name, config] : small_configs()) {
    config.fused_layers = true;
    for (const bool recompute : {false, true}) {
      config.activation_recompute = recompute;
      config.joined_embedding_gradient = false;
      LanguageModel apart(config, at::kCPU, at::kDouble, 1);
      config.joined_embedding_gradient = true;
      LanguageModel joined(config, at::kCPU, at::kDouble, 1);
      for (int micro = 0; micro < 2; ++micro) {
        const Tensor tokens = random_tokens(2, kSequence), targets = random_tokens(2, kSequence);
        (apart.loss(tokens, targets) * 0.5).backward();
        (joined.loss(tokens, targets) * 0.5).backward();
      }
      for (size_t i = 0; i < apart.named_parameters().size(); ++i)
        EXPECT_TRUE(at::allclose(joined.named_parameters()[i].tensor.grad(),
                                 apart.named_parameters()[i].tensor.grad(), 1e-10, 1e-14))
            << name << ": " << apart.named_parameters()[i].name;
    }
  }
}

// The optimizer keeps parameters and gradients as views of two flat buffers.
TEST(Gradients, LandInViewsOfAFlatBuffer) {
  at::manual_seed(4);
  LanguageModel model(small_config(), at::kCPU, at::kFloat, 1);
  const Tensor tokens = random_tokens(2, kSequence), targets = random_tokens(2, kSequence);
  const auto expected = gradients(model, tokens, targets);
  Tensor weights = at::empty({parameter_count(model.config())}), grads = at::zeros_like(weights);
  int64_t begin = 0;
  for (const NamedParameter& p : model.named_parameters()) {
    const int64_t count = p.tensor.numel();
    const Tensor view = weights.narrow(0, begin, count).view(p.tensor.sizes());
    view.copy_(p.tensor.detach());
    p.tensor.set_data(view);
    p.tensor.mutable_grad() = grads.narrow(0, begin, count).view(p.tensor.sizes());
    begin += count;
  }
  model.loss(tokens, targets).backward();
  begin = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const Tensor part = grads.narrow(0, begin, expected[i].numel()).view(expected[i].sizes());
    EXPECT_LE(largest_difference(part, expected[i]), 1e-7) << model.named_parameters()[i].name;
    begin += expected[i].numel();
  }
  weights.zero_(); // the model sees changes of the buffer: all logits are equal now
  EXPECT_NEAR(model.loss(tokens, targets).item<double>(), std::log(double(kVocabulary)), 1e-6);
}

TEST(FusedLayers, GiveTheSameLossAndGradients) {
  for (auto [name, config] : small_configs())
    for (const bool recomputed : {false, true}) {
      at::manual_seed(31);
      config.activation_recompute = recomputed;
      const Tensor tokens = random_tokens(2, kSequence), targets = random_tokens(2, kSequence);
      std::vector<std::vector<Tensor>> found;
      for (const bool fused : {false, true}) {
        config.fused_layers = fused;
        LanguageModel model(config, at::kCPU, at::kFloat, 5);
        sharpen(model, 3);
        const Tensor loss = model.loss(tokens, targets);
        loss.backward();
        found.push_back({loss.detach()});
        for (const NamedParameter& p : model.named_parameters())
          found.back().push_back(p.tensor.grad());
      }
      for (size_t i = 0; i < found[0].size(); ++i)
        EXPECT_TRUE(at::allclose(found[1][i], found[0][i], 1e-4, 2e-5)) << name << " tensor " << i;
    }
}

// AdamW without weight decay, sufficient for a test.
class Adam {
public:
  explicit Adam(LanguageModel& model, double rate) : model_(model), rate_(rate) {
    for (const NamedParameter& p : model.named_parameters()) {
      first_.push_back(at::zeros_like(p.tensor.detach()));
      second_.push_back(at::zeros_like(p.tensor.detach()));
    }
  }
  double step(const Tensor& tokens, const Tensor& targets) {
    for (const NamedParameter& p : model_.named_parameters())
      p.tensor.mutable_grad().reset();
    const Tensor loss = model_.loss(tokens, targets);
    loss.backward();
    c10::NoGradGuard no_grad;
    ++count_;
    for (size_t i = 0; i < first_.size(); ++i) {
      const Tensor weight = model_.named_parameters()[i].tensor.detach();
      const Tensor grad = model_.named_parameters()[i].tensor.grad();
      first_[i].mul_(0.9).add_(grad, 0.1);
      second_[i].mul_(0.95).addcmul_(grad, grad, 0.05);
      const Tensor root = (second_[i] / (1 - std::pow(0.95, count_))).sqrt_().add_(1e-8);
      weight.addcdiv_(first_[i], root, -rate_ / (1 - std::pow(0.9, count_)));
    }
    return loss.item<double>();
  }

private:
  LanguageModel& model_;
  double rate_;
  int count_ = 0;
  std::vector<Tensor> first_, second_;
};

TEST(Training, LearnsOneBatchByHeart) {
  at::manual_seed(6);
  for (const char* name : {"average, group gate", "mlp, head gate", "dense"}) {
    LanguageModel model(small_configs().at(name), at::kCPU, at::kFloat, 1);
    Adam adam(model, 1e-2);
    const Tensor text = random_tokens(1, kSequence + 1);
    const Tensor tokens = text.narrow(1, 0, kSequence), targets = text.narrow(1, 1, kSequence);
    double loss = 0;
    for (int step = 0; step < 150; ++step)
      loss = adam.step(tokens, targets);
    EXPECT_LT(loss, 0.2) << name;
  }
}

// New random tokens cannot be predicted. A model that does better must see its targets.
TEST(Training, NeverBeatsRandomTokens) {
  at::manual_seed(7);
  for (const char* name : {"average, group gate", "mlp, head gate", "dense"}) {
    LanguageModel model(small_configs().at(name), at::kCPU, at::kFloat, 1);
    Adam adam(model, 3e-3);
    double late = 0;
    for (int step = 0; step < 120; ++step) {
      const Tensor text = random_tokens(4, kSequence + 1);
      const double loss = adam.step(text.narrow(1, 0, kSequence), text.narrow(1, 1, kSequence));
      if (step >= 60) late += loss / 60;
    }
    EXPECT_GT(late, std::log(double(kVocabulary)) - 0.005) << name;
    EXPECT_LT(late, std::log(double(kVocabulary)) + 0.1) << name;
  }
}

} // namespace
} // namespace nsa::model
