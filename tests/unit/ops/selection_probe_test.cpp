// Which queries of a batch the probe samples. Its figures are compared with plain loops over the
// blocks of random scores.
#include "nsa_model/ops/selection.h"
#include "nsa_model/ops/selection_probe.h"
#include "tests/support/selection_loops.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace nsa::ops {
namespace {

using at::Tensor;

constexpr Sizes kSizes{8, 4, 8, 4, 12}; // n = 4 blocks of 8

TEST(SelectionProbe, LooksAtPairsThatShareABlockAndHaveAChoice) {
  EXPECT_TRUE(probed_rows({}, kSizes).empty());
  EXPECT_TRUE(probed_rows({{0, 32}}, kSizes).empty()) << "32 tokens have four blocks, all selected";
  EXPECT_TRUE(probed_rows({{0, 36}}, kSizes).empty()) << "the block's pair ends behind the text";
  EXPECT_THAT(probed_rows({{0, 37}}, kSizes), testing::ElementsAre(35));
  EXPECT_THAT(probed_rows({{100, 48}, {148, 20}, {168, 40}}, kSizes),
              testing::ElementsAre(135, 143, 203));
  for (const int64_t block : {1, 2, 3, 64}) {
    const Sizes sizes{block, block, block, 4, 12};
    for (int64_t length = 1; length < 8 * block; ++length)
      for (const int64_t row : probed_rows({{0, length}}, sizes)) {
        EXPECT_GE(row, 4 * block);
        EXPECT_LT(row + 1, length);
        if (block > 1) {
          EXPECT_EQ(row / block, (row + 1) / block);
        }
      }
  }
}

TEST(SelectionProbe, SpreadsItsPairsOverLongBatches) {
  std::vector<SelectedRows> rows;
  for (int64_t row = 0; row < 16; ++row)
    rows.push_back({row * 2048, 2048});
  const std::vector<int64_t> found = probed_rows(rows, {});
  EXPECT_EQ(int64_t(found.size()), kProbedPairs);
  for (size_t i = 0; i < found.size(); ++i)
    EXPECT_EQ(found[i] / 2048, int64_t(i) / 4) << "four of each row";
  for (const int64_t length : {2000, 65'536, 131'071, 1'048'576}) {
    const auto of_one = probed_rows({{0, length}}, {});
    EXPECT_LE(int64_t(of_one.size()), kProbedPairs);
    EXPECT_GE(int64_t(of_one.size()), std::min(kProbedPairs / 2, length / 64 - 16));
    EXPECT_GT(of_one.back(), length - length / 8 - 128);
  }
}

// Returns blocks of random scores, [B, S, G, n].
Tensor random_blocks(int64_t rows, int64_t length, int64_t groups, const Sizes& sizes) {
  const int64_t blocks = reference::block_count(length, sizes);
  const Tensor scores = at::rand({rows * groups, length, blocks});
  return select_blocks(scores, 0, sizes)
      .view({rows, groups, length, -1})
      .transpose(1, 2)
      .contiguous();
}

TEST(SelectionProbe, TellsDistanceAndOverlapOfEachLayer) {
  at::manual_seed(2);
  const int64_t rows = 2, length = 100, groups = 3;
  const std::vector<SelectedRows> all{{0, length}, {length, length}};
  SelectionProbe probe(3, at::kCPU);
  EXPECT_TRUE(probe.take().isnan().all().item<bool>()) << "of no pass";
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<Tensor> layers;
    for (int64_t layer : {0, 2}) {
      const SelectionProbe::Scope scope(&probe, layer);
      ASSERT_TRUE(selection_is_probed());
      // Too short, so it does not count.
      note_selection(at::zeros({1, 1, groups, 4}, at::kInt), {{0, 1}}, kSizes);
      layers.push_back(random_blocks(rows, length, groups, kSizes));
      note_selection(layers.back(), all, kSizes);
    }
    EXPECT_FALSE(selection_is_probed());
    note_selection(layers[0], all, kSizes); // outside a scope, so nothing is sampled
    const Tensor figures = probe.take();
    ASSERT_EQ(figures.sizes(), (std::vector<int64_t>{3, 2}));
    for (const int64_t layer : {0, 2}) {
      const test::SelectionLoops exact(layers[size_t(layer / 2)], all, kSizes);
      EXPECT_EQ(exact.chosen, rows * 8 * 2 * groups) << "one of each query of eight pairs a row";
      EXPECT_FLOAT_EQ(figures[layer][0].item<float>(), float(exact.distance()));
      EXPECT_FLOAT_EQ(figures[layer][1].item<float>(), float(exact.overlap()));
    }
    EXPECT_TRUE(figures[1].isnan().all().item<bool>()) << "a layer that told nothing";
    EXPECT_TRUE(probe.take().isnan().all().item<bool>()) << "taken once";
  }
}

TEST(SelectionProbe, ForgetsAPassThatFailed) {
  at::manual_seed(4);
  SelectionProbe probe(2, at::kCPU);
  const auto note = [&](int64_t layer, const Tensor& blocks) {
    const SelectionProbe::Scope scope(&probe, layer);
    note_selection(blocks, {{0, 100}}, kSizes);
  };
  note(0, random_blocks(1, 100, 2, kSizes));
  note(1, random_blocks(1, 100, 2, kSizes));
  probe.forget();
  const Tensor blocks = random_blocks(1, 100, 2, kSizes);
  note(0, blocks);
  const Tensor figures = probe.take();
  const test::SelectionLoops exact(blocks, {{0, 100}}, kSizes);
  EXPECT_FLOAT_EQ(figures[0][0].item<float>(), float(exact.distance()));
  EXPECT_TRUE(figures[1].isnan().all().item<bool>());
}

// Blocks with known figures.
TEST(SelectionProbe, FiguresOfAFixedAndOfAnAlternatingChoice) {
  const Sizes sizes{8, 4, 8, 5, 12};
  const auto figures = [&](const std::vector<int>& first, const std::vector<int>& second) {
    std::vector<int> both = first;
    both.insert(both.end(), second.begin(), second.end());
    return selection_figures(at::tensor(both, at::kInt).view({1, 2, 1, 5}), sizes);
  };
  const Tensor same = figures({0, 1, 3, 8, 9}, {0, 1, 3, 8, 9});
  EXPECT_FLOAT_EQ(same[0][0].item<float>(), 8 * (8 + 6) / 2.0F);
  EXPECT_FLOAT_EQ(same[0][1].item<float>(), 1);
  EXPECT_FLOAT_EQ(figures({0, 1, 3, 8, 9}, {0, 3, 5, 8, 9})[0][1].item<float>(), 0.5F);
  EXPECT_FLOAT_EQ(figures({0, 1, 2, 8, 9}, {0, 3, 4, 8, 9})[0][1].item<float>(), 0);
  // The queries are in two different blocks, so distances count but the overlap does not.
  const Tensor apart = figures({0, 1, 3, 8, 9}, {0, 1, 3, 9, 10});
  EXPECT_FLOAT_EQ(apart[0][0].item<float>(), 8 * (8 + 6 + 9 + 7) / 4.0F);
  EXPECT_TRUE(std::isnan(apart[0][1].item<float>()));
  // There are only five causal blocks, so all are selected.
  EXPECT_TRUE(figures({0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}).isnan().all().item<bool>());
}

// Other sizes begin a new sample. A shorter text leaves nothing of a longer one.
TEST(SelectionProbe, TakesTextsOfOtherShapes) {
  at::manual_seed(3);
  SelectionProbe probe(1, at::kCPU);
  const SelectionProbe::Scope scope(&probe, 0);
  const std::vector<std::pair<int64_t, int64_t>> shapes{{100, 2}, {52, 2}, {76, 1}};
  for (const auto& [length, groups] : shapes) {
    const Tensor blocks = random_blocks(1, length, groups, kSizes);
    note_selection(blocks, {{0, length}}, kSizes);
    const test::SelectionLoops exact(blocks, {{0, length}}, kSizes);
    EXPECT_FLOAT_EQ(probe.take()[0][0].item<float>(), float(exact.distance()));
  }
}

} // namespace
} // namespace nsa::ops
