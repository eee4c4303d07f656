// The products of the output layer with exponentials in place of logits.
#include "nsa_model/ops/vocabulary_product.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace nsa::ops {
namespace {

using at::Tensor;

struct Rows {
  Tensor x, weight, labels, row_weight, loss, label_factor;
  Exponentials run() const {
    return vocabulary_product(x, weight, labels, row_weight, loss, label_factor);
  }
};

// 40 columns; weights of rows between 0 and 1.
Rows some_rows(int64_t count, at::ScalarType type) {
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  return {at::randn({count, 12}, at::kDouble).to(type),
          at::randn({40, 12}, at::kDouble).to(type),
          at::randint(40, {count}, at::kLong),
          at::rand({count}, at::kDouble).to(wide),
          at::full({count}, -1, wide),
          at::full({count}, -1, wide)};
}

double largest(const Tensor& x) {
  return x.abs().max().item<double>();
}

TEST(VocabularyProduct, DividesProbabilitiesByTheLabels) {
  at::manual_seed(1);
  const Rows rows = some_rows(9, at::kDouble);
  const Exponentials e = rows.run();
  const Tensor label = rows.labels.unsqueeze(1);
  const Tensor p = at::softmax(at::mm(rows.x, rows.weight.t()), 1), of_label = p.gather(1, label);
  EXPECT_TRUE(at::allclose(e.values, (p / of_label).scatter(1, label, 0), 1e-10, 1e-12));
  EXPECT_EQ(largest(e.values.gather(1, label)), 0);
  EXPECT_LE(largest(rows.loss + rows.row_weight * of_label.squeeze(1).log()), 1e-12);
  EXPECT_LE(largest(e.factor - rows.row_weight * of_label.squeeze(1)), 1e-12);
  EXPECT_LE(largest(rows.label_factor - rows.row_weight * (of_label.squeeze(1) - 1)), 1e-12);
  EXPECT_LE(largest(e.scaled - rows.x * e.factor.unsqueeze(1)), 1e-12);

  Tensor d_x = at::empty_like(rows.x);
  hidden_gradient_(d_x, at::mm(e.values, rows.weight), e.factor, rows.label_factor, rows.labels,
                   rows.weight);
  const Tensor d_logits =
      (p - at::zeros_like(p).scatter(1, label, 1)) * rows.row_weight.unsqueeze(1);
  EXPECT_LE(largest(d_x - at::mm(d_logits, rows.weight)), 1e-12);
}

// A label of no column makes the loss NaN. It changes no gradient of another row.
TEST(VocabularyProduct, ALabelOfNoColumnIsNotRead) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Rows rows = some_rows(6, type);
    const Exponentials right = rows.run();
    const Tensor loss = rows.loss.clone();
    rows.labels[1] = 40;
    rows.labels[4] = -1;
    const Exponentials wrong = rows.run();
    const Tensor d_x = at::full_like(rows.x, NAN);
    hidden_gradient_(d_x, at::zeros({6, 12}, rows.loss.options()), wrong.factor, rows.label_factor,
                     rows.labels, rows.weight);
    EXPECT_TRUE(d_x.isfinite().all().item<bool>());
    for (int64_t row = 0; row < 6; ++row) {
      if (row == 1 || row == 4) {
        EXPECT_TRUE(rows.loss[row].isnan().item<bool>()) << row;
        EXPECT_EQ(rows.label_factor[row].item<double>(), 0) << row;
        EXPECT_EQ(wrong.factor[row].item<double>(), 0) << row;
        continue;
      }
      EXPECT_TRUE(at::equal(rows.loss[row], loss[row])) << row;
      EXPECT_TRUE(at::equal(wrong.values[row], right.values[row])) << row;
    }
  }
}

TEST(VocabularyProduct, RefusesWhatDoesNotFit) {
  const Rows good = some_rows(5, at::kFloat);
  EXPECT_NO_THROW(good.run());
  const auto refused = [&](Tensor Rows::* member, const Tensor& wrong) {
    Rows rows = good;
    rows.*member = wrong;
    EXPECT_THROW(rows.run(), c10::Error);
  };
  for (const Tensor& wrong : {good.x.narrow(1, 0, 11), good.x.to(at::kBFloat16), good.x[0]})
    refused(&Rows::x, wrong);
  for (const Tensor& wrong : {good.weight.to(at::kMeta), good.weight.t()})
    refused(&Rows::weight, wrong);
  for (const Tensor& wrong : {good.labels.narrow(0, 0, 4), good.labels.to(at::kInt)})
    refused(&Rows::labels, wrong);
  for (const auto member : {&Rows::row_weight, &Rows::loss, &Rows::label_factor})
    for (const Tensor& wrong : {good.loss.narrow(0, 0, 4), good.loss.to(at::kDouble)})
      refused(member, wrong);

  const auto gradient = [&](const Tensor& d_x, const Tensor& product, const Tensor& factor) {
    hidden_gradient_(d_x, product, factor, good.label_factor, good.labels, good.weight);
  };
  const Tensor& x = good.x;
  EXPECT_NO_THROW(gradient(x, x, good.loss));
  EXPECT_THROW(gradient(x, x.narrow(0, 0, 4), good.loss), c10::Error);
  EXPECT_THROW(gradient(x, x.to(at::kBFloat16), good.loss), c10::Error);
  EXPECT_THROW(gradient(x, x, good.loss.narrow(0, 0, 4)), c10::Error);
  EXPECT_THROW(gradient(x.narrow(1, 0, 11), x, good.loss), c10::Error);
}

} // namespace
} // namespace nsa::ops
