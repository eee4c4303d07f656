// The output layer with its cross-entropy, from logits and from exponentials, which a tied
// embedding has. ATen's cross-entropy in FP64 with its autograd is the judge.
#include "nsa_model/model/cross_entropy.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace nsa::model {
namespace {

using at::Tensor;

struct Case {
  Tensor hidden, weight, targets;
  Case as(at::ScalarType type) const { return {hidden.to(type), weight.to(type), targets}; }
};
struct Outcome {
  Tensor loss, hidden, weight; // the loss and the gradients of 3 times it
};

Tensor leaf(const Tensor& x) {
  return x.detach().clone().set_requires_grad(true);
}

Outcome outcome_of(const Tensor& loss, const Tensor& hidden, const Tensor& weight) {
  const auto found = torch::autograd::grad({loss * 3}, {hidden, weight});
  return {loss.detach(), found[0], found[1]};
}

Outcome judged(const Case& c) {
  const Tensor hidden = leaf(c.hidden.to(at::kDouble)), weight = leaf(c.weight.to(at::kDouble));
  return outcome_of(
      at::cross_entropy_loss(at::linear(hidden, weight), c.targets, {}, at::Reduction::Mean, -1),
      hidden, weight);
}
Outcome of_logits(const Case& c, bool fused) {
  const Tensor hidden = leaf(c.hidden), weight = leaf(c.weight);
  return outcome_of(linear_cross_entropy(hidden, weight, c.targets, fused), hidden, weight);
}
// The lookup adds nothing to the hidden rows, and gets no gradient from them.
Outcome of_exponentials(const Case& c) {
  const Tensor hidden = leaf(c.hidden), weight = leaf(c.weight);
  const auto tied = c10::make_intrusive<ops::TiedGradient>();
  const Tensor ids = at::zeros({c.hidden.size(0)}, at::kLong);
  const Tensor rows = hidden + ops::embedding(weight, ids, tied) * 0;
  return outcome_of(linear_cross_entropy(rows, weight, c.targets, /*fused=*/true, tied), hidden,
                    weight);
}

double relative(const Tensor& value, const Tensor& wanted) {
  const double norm = wanted.norm().item<double>();
  const double error = (value.to(at::kDouble) - wanted).norm().item<double>();
  return norm > 0 ? error / norm : error;
}
void expect_close(const Outcome& found, const Outcome& wanted, double tolerance,
                  const std::string& what = "") {
  EXPECT_LE(relative(found.loss, wanted.loss), tolerance) << what;
  EXPECT_LE(relative(found.hidden, wanted.hidden), tolerance) << what;
  EXPECT_LE(relative(found.weight, wanted.weight), tolerance) << what;
}

// So large that a CPU takes several chunks. Targets 100 to 129 are ignored.
Case of_several_chunks() {
  Case c{at::randn({700, 12}, at::kDouble), at::randn({5000, 12}, at::kDouble),
         at::randint(5000, {700}, at::kLong)};
  c.targets.narrow(0, 100, 30).fill_(-1);
  return c;
}

// Rows whose labels have a logit that is `above` the others', which are almost equal.
Case of_labels_above(double above) {
  Case c{at::randn({64, 24}, at::kDouble).mul_(0.01), at::randn({64, 24}, at::kDouble),
         at::arange(64).remainder_(16)};
  // The first 16 columns of the hidden rows choose a label.
  c.weight.narrow(1, 0, 16).zero_();
  for (int64_t label = 0; label < 16; ++label)
    c.weight[label][label] = 1;
  for (int64_t row = 0; row < 64; ++row)
    c.hidden[row][row % 16] = above;
  return c.as(at::kBFloat16).as(at::kDouble); // the same values in every dtype
}

TEST(CrossEntropy, ChunksLikeTheWhole) {
  at::manual_seed(5);
  const Case c = of_several_chunks();
  const Outcome wanted = judged(c);
  expect_close(of_logits(c, false), wanted, 1e-13, "from logits");
  expect_close(of_logits(c, true), wanted, 1e-13, "from logits, fused");
  expect_close(of_exponentials(c), wanted, 1e-13, "from exponentials");
}

// The backward pass scales its gradient in place, but not one that is needed again.
TEST(CrossEntropy, ARetainedGraphGivesItsGradientsAgain) {
  at::manual_seed(9);
  const Case c = of_several_chunks();
  for (const bool fused : {false, true}) {
    const Tensor hidden = leaf(c.hidden), weight = leaf(c.weight);
    const Tensor loss = linear_cross_entropy(hidden, weight, c.targets, fused) * 3;
    const auto gradients = [&](bool retain) {
      return torch::autograd::grad({loss}, {hidden, weight}, {}, retain);
    };
    const auto first = gradients(true), second = gradients(true), last = gradients(false);
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(at::equal(first[i], second[i])) << i;
      EXPECT_TRUE(at::equal(first[i], last[i])) << i;
    }
    expect_close({loss.detach() / 3, first[0], first[1]}, judged(c), 1e-13);
  }
}

TEST(CrossEntropy, WithoutATargetIsZero) {
  at::manual_seed(6);
  Case c = of_several_chunks().as(at::kFloat);
  c.targets.fill_(-1);
  for (const Outcome& found : {of_logits(c, false), of_exponentials(c)})
    for (const Tensor& x : {found.loss, found.hidden, found.weight})
      EXPECT_TRUE(x.eq(0).all().item<bool>());
}

// In BF16 the logits are rounded, and the exponentials come from sums in FP32. So the gradients
// from exponentials are as exact, and much more exact for confident rows.
TEST(CrossEntropy, OfExponentialsIsAsExactAsOfLogits) {
  at::manual_seed(7);
  const Case c = of_several_chunks().as(at::kBFloat16);
  const Outcome wanted = judged(c), logits = of_logits(c, true), found = of_exponentials(c);
  EXPECT_LE(relative(found.loss, wanted.loss), 1e-6);
  EXPECT_LE(relative(found.hidden, wanted.hidden), relative(logits.hidden, wanted.hidden));
  EXPECT_LE(relative(found.weight, wanted.weight), relative(logits.weight, wanted.weight));
}

// With 64 labels, a logit above the others' by 13.4 gives 1 - p = 1e-4, and one by 20 gives 1e-7.
TEST(CrossEntropy, ConfidentRowsKeepTheirGradient) {
  at::manual_seed(8);
  for (const double above : {13.4, 20.0}) {
    const Case c = of_labels_above(above);
    const Outcome wanted = judged(c);
    const double unsure = wanted.loss.item<double>(); // -log p, almost 1 - p
    EXPECT_NEAR(std::log(unsure), std::log(63) - above, 0.2);
    expect_close(of_exponentials(c.as(at::kFloat)), wanted, 2e-5, "FP32");
    const Outcome found = of_exponentials(c.as(at::kBFloat16));
    EXPECT_LE(relative(found.loss, wanted.loss), 2e-5);
    EXPECT_LE(relative(found.hidden, wanted.hidden), 5e-3);
    EXPECT_LE(relative(found.weight, wanted.weight), 5e-3);
  }
}

// p of the labels is e^-30 or e^-60 of the others'.
TEST(CrossEntropy, ImprobableLabelsKeepTheirGradient) {
  at::manual_seed(9);
  for (const double above : {-30.0, -60.0}) {
    const Case c = of_labels_above(above);
    const Outcome wanted = judged(c);
    expect_close(of_exponentials(c.as(at::kFloat)), wanted, 2e-5, "FP32");
    expect_close(of_exponentials(c.as(at::kBFloat16)), wanted, 5e-3, "BF16");
  }
}

// Beyond a ratio of 2^100 the loss and the gradients stay finite, and still lower the loss.
TEST(CrossEntropy, RatiosBeyondTheBoundStayFinite) {
  at::manual_seed(10);
  for (const double above : {-100.0, -1000.0})
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Case c = of_labels_above(above);
      const Outcome wanted = judged(c), found = of_exponentials(c.as(type));
      EXPECT_GE(found.loss.item<double>(), 100 * std::log(2.0));
      for (const auto& [value, exact] :
           {std::pair{found.hidden, wanted.hidden}, std::pair{found.weight, wanted.weight}}) {
        EXPECT_TRUE(value.isfinite().all().item<bool>());
        EXPECT_GE((value * exact).sum().item<double>(), 0.9 * exact.square().sum().item<double>());
      }
    }
}

} // namespace
} // namespace nsa::model
