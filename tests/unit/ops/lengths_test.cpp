// Any length: one random length from each part of 1 .. 4,096, with the paper's sizes and random
// ones, with and without packed documents. The oracle computes a few tokens of each length, among
// them those at edges, so long sequences do not take too long. Gradients are those of these tokens.
#include "tests/unit/ops/attention_case.h"

#include <random>
#include <set>

namespace nsa::ops {
namespace {

using at::Tensor;
using Engine = std::mt19937;

constexpr int64_t kLongest = 4096;
constexpr int64_t kLengths = 24;

int64_t draw(Engine& engine, int64_t least, int64_t most) {
  return least + int64_t(engine() % uint64_t(most - least + 1));
}

Sizes draw_sizes(Engine& engine) {
  Sizes z;
  z.compression_stride = int64_t(2) << draw(engine, 1, 3); // 4 .. 16
  z.compression_block = z.compression_stride * draw(engine, 1, 4);
  z.selection_block = z.compression_stride * draw(engine, 2, 6);
  z.selected_blocks = draw(engine, 3, 12);
  z.window = draw(engine, 1, 700);
  return z;
}

std::vector<int64_t> draw_documents(Engine& engine, int64_t length) {
  std::vector<int64_t> lengths;
  while (length > 0) {
    lengths.push_back(draw(engine, 1, engine() % 4 == 0 ? std::min<int64_t>(length, 40) : length));
    length -= lengths.back();
  }
  return lengths;
}

std::vector<int64_t> draw_tokens(Engine& engine, int64_t length, const Sizes& z) {
  std::set<int64_t> tokens{0,
                           length - 1,
                           z.compression_block - 2,
                           z.compression_block - 1,
                           z.window,
                           z.selected_blocks * z.selection_block};
  for (int i = 0; i < 10; ++i)
    tokens.insert(draw(engine, 0, length - 1));
  std::erase_if(tokens, [&](int64_t t) { return t < 0 || t >= length; });
  return {tokens.begin(), tokens.end()};
}

// Rounding may exchange nearly equal scores. Otherwise the selection must have the best blocks.
void expect_selection(const AttentionCase& c, const Tensor& scores, const Tensor& indices,
                      const std::string& what) {
  const Sizes& z = c.settings.sizes;
  const auto score = scores.accessor<double, 4>();
  const auto row = indices.accessor<int, 4>();
  for (int64_t b = 0; b < c.shape.batch; ++b)
    for (const int64_t t : c.only_tokens)
      for (int64_t g = 0; g < c.shape.groups; ++g) {
        const int64_t begin =
            c.tensors.document_start ? (*c.tensors.document_start)[b][t].item<int64_t>() : 0;
        const int current = int((t - begin) / z.selection_block);
        std::vector<int> chosen;
        for (int64_t slot = 0; slot < z.selected_blocks; ++slot)
          if (row[b][t][g][slot] >= 0) chosen.push_back(row[b][t][g][slot]);
        ASSERT_EQ(chosen.size(), size_t(std::min<int64_t>(z.selected_blocks, current + 1))) << what;
        const std::set<int> set(chosen.begin(), chosen.end());
        ASSERT_TRUE(std::equal(set.begin(), set.end(), chosen.begin(), chosen.end()))
            << what << ": not ascending or not unique";
        ASSERT_TRUE(set.contains(0) && set.contains(current) &&
                    set.contains(std::max(0, current - 1)) && *set.rbegin() == current)
            << what;
        double worst_taken = INFINITY, best_left = 0, largest = 0;
        for (int block = 1; block <= current - 2; ++block) {
          const double s = score[b][t][g][block];
          largest = std::max(largest, s);
          if (set.contains(block))
            worst_taken = std::min(worst_taken, s);
          else
            best_left = std::max(best_left, s);
        }
        ASSERT_GE(worst_taken, best_left - 1e-6 * largest) << what << " t = " << t;
      }
}

void expect_like_oracle(AttentionCase& c, double tolerance, const std::string& what) {
  const auto [scores, indices] =
      select(c.tensors.q, *c.tensors.k[0], c.settings, c.tensors.document_start);
  const Tensor out = attention(c.tensors, c.settings, Kernels::kAten);
  const Tensor direction = c.direction();
  const auto grads = torch::autograd::grad({out}, c.leaves(), {direction});
  c.tensors.indices = indices; // all computations use this selection from here on
  const reference::Outputs oracle = c.oracle();

  const Tensor exact_scores = to_tensor(oracle.scores, scores.sizes());
  EXPECT_LE(largest_difference(c.computed(scores), c.computed(exact_scores)), 1e-5) << what;
  expect_selection(c, exact_scores, indices, what);
  const std::vector<int64_t> shape = c.output_shape();
  const std::vector<int64_t> lse_shape(shape.begin(), shape.end() - 1);
  const auto near = [&](const Tensor& found, const Tensor& exact, const std::string& name) {
    EXPECT_LE(largest_difference(c.computed(found), c.computed(exact)), tolerance)
        << what << ' ' << name;
  };
  near(out, to_tensor(oracle.o, shape), "output");
  for (const Branch branch : {Branch::kCompressed, Branch::kSelected, Branch::kSliding}) {
    const BranchResult r = c.run(branch, indices);
    const std::string name = "branch " + std::to_string(int(branch));
    near(r.o, to_tensor(oracle.branch_o[size_t(branch)], shape), name);
    near(r.lse, to_tensor(oracle.branch_lse[size_t(branch)], lse_shape), name + " lse");
  }
  const auto exact = c.oracle_gradients(direction);
  for (size_t i = 0; i < grads.size(); ++i)
    EXPECT_LE(largest_difference(grads[i], exact[i]), 10 * tolerance) << what << " gradient " << i;
}

TEST(Lengths, AnyOfThemLikeTheOracle) {
  static unsigned seed = 31; // the same in every run; --gtest_repeat uses others
  at::manual_seed(seed);
  Engine engine(seed++);
  for (int64_t part = 0; part < kLengths; ++part) {
    const int64_t width = kLongest / kLengths;
    const int64_t length = std::min(kLongest, draw(engine, part * width + 1, (part + 1) * width));
    const Sizes sizes = part % 2 == 0 ? Sizes{} : draw_sizes(engine);
    const at::ScalarType type = part % 4 < 2 ? at::kDouble : at::kFloat;
    const int64_t groups = draw(engine, 1, 2);
    AttentionCase c({1, length, groups * draw(engine, 1, 3), groups, 4}, sizes, type, true);
    if (part % 3 == 2) c.set_documents(draw_documents(engine, length));
    c.only_tokens = draw_tokens(engine, length, sizes);
    expect_like_oracle(c, type == at::kDouble ? 1e-11 : 2e-5,
                       "S = " + std::to_string(length) +
                           ", l' = " + std::to_string(sizes.selection_block) +
                           (c.tensors.document_start ? ", documents" : ""));
  }
}

} // namespace
} // namespace nsa::ops
