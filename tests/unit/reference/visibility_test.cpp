// Tests from outside which keys a query sees: a changed value changes the outputs of exactly the
// queries that see it.
#include "nsa_model/reference/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace nsa::reference {
namespace {

constexpr Sizes kSizes{8, 4, 16, 3, 12};
constexpr int64_t kSequence = 100;
constexpr int64_t kSecondDocument = 23;
const Shape kShape{1, kSequence, 1, 1, 2};

int64_t begin_of(int64_t t) {
  return t < kSecondDocument ? 0 : kSecondDocument;
}

Inputs two_documents() {
  std::mt19937_64 engine(21);
  std::normal_distribution<double> normal;
  const auto fill = [&](int64_t rows) {
    Array values(static_cast<size_t>(rows * 2));
    for (double& value : values)
      value = normal(engine);
    return values;
  };
  Inputs in;
  in.q = fill(kSequence);
  for (int branch = 0; branch < 3; ++branch) {
    const int64_t rows = branch == 0 ? compressed_count(kSequence, kSizes) : kSequence;
    in.k[branch] = fill(rows);
    in.v[branch] = fill(rows);
  }
  in.gates.assign(kSequence * 3, 1.0);
  for (int64_t t = 0; t < kSequence; ++t)
    in.document_start.push_back(begin_of(t));
  return in;
}

// Whether the output of `branch` at t depends on value row `row` of that branch.
template <class Expected> void expect_visible_as(int branch, int64_t rows, Expected expected) {
  Inputs in = two_documents();
  const Outputs before = attend(kShape, kSizes, in);
  for (int64_t row = 0; row < rows; ++row) {
    double& value = in.v[branch][static_cast<size_t>(row * 2)];
    const double original = value;
    value += 1;
    const Outputs after = attend(kShape, kSizes, in);
    value = original;
    for (int64_t t = 0; t < kSequence; ++t) {
      const auto at = static_cast<size_t>(t * 2);
      ASSERT_EQ(after.branch_o[branch][at] != before.branch_o[branch][at], expected(before, t, row))
          << "query " << t << ", row " << row;
    }
  }
}

TEST(Visibility, TheWindowHoldsWKeysTheTokenItselfIncluded) {
  expect_visible_as(2, kSequence, [](const Outputs&, int64_t t, int64_t p) {
    return p <= t && p > t - kSizes.window && begin_of(p) == begin_of(t);
  });
}

TEST(Visibility, SelectedBlocksAreSeenUpToTheToken) {
  expect_visible_as(1, kSequence, [](const Outputs& out, int64_t t, int64_t p) {
    if (p > t || begin_of(p) != begin_of(t)) return false;
    const auto first = out.indices.begin() + t * kSizes.selected_blocks;
    const auto block = static_cast<int32_t>((p - begin_of(t)) / kSizes.selection_block);
    return std::find(first, first + kSizes.selected_blocks, block) !=
           first + kSizes.selected_blocks;
  });
}

TEST(Visibility, CompressedTokensAreSeenWhenTheirLastTokenIs) {
  const int64_t of_first = compressed_count(kSecondDocument, kSizes);
  const int64_t of_second = compressed_count(kSequence - kSecondDocument, kSizes);
  expect_visible_as(0, of_first + of_second, [&](const Outputs&, int64_t t, int64_t row) {
    const int64_t begin = row < of_first ? 0 : kSecondDocument;
    const int64_t i = row < of_first ? row : row - of_first;
    const int64_t last = begin + i * kSizes.compression_stride + kSizes.compression_block - 1;
    return begin == begin_of(t) && last <= t;
  });
}

} // namespace
} // namespace nsa::reference
