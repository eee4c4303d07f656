// Compares nsa::fused_decode with attention over the same caches in float64 on the same GPU, and
// its choice of blocks with scores in float64.
#include "nsa_model/ops/decode.h"
#include "tests/gpu/gpu_host.h"

#include <ATen/Functions.h>
#include <algorithm>
#include <gtest/gtest.h>
#include <limits>
#include <string>

namespace nsa::ops {
namespace {

using at::Tensor;

constexpr int64_t kForced = 3; // blocks 0, c - 1 and c

class FusedDecode : public testing::Test {
protected:
  void SetUp() override {
    if (!fused_missing().empty()) GTEST_SKIP() << fused_missing();
  }
};

struct Problem {
  std::vector<int64_t> lengths; // of the sequences
  int64_t capacity;
  int64_t groups = 2, heads = 6; // heads per group
  bool gate_a_head = false;
  int64_t window_rows = 512;
  double sharpness = 1; // of the queries
};

// Random caches. Rows that no sequence has reached are NaN.
DecodeInputs inputs_of(const Problem& p) {
  const auto cuda = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  const auto batch = static_cast<int64_t>(p.lengths.size());
  DecodeInputs in;
  in.q = at::randn({batch, 1, p.groups * p.heads, 64}, cuda) * p.sharpness;
  in.gates = at::rand({batch, 1, p.gate_a_head ? p.groups * p.heads : p.groups, 3},
                      cuda.dtype(at::kFloat));
  in.lengths = at::tensor(std::vector<int>(p.lengths.begin(), p.lengths.end()), at::kInt);
  const int64_t rows[] = {std::max<int64_t>(1, reference::compressed_count(p.capacity, Sizes{})),
                          p.capacity, p.window_rows};
  for (std::size_t branch = 0; branch < 3; ++branch) {
    Tensor reached = at::empty({batch}, at::kLong);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = p.lengths[static_cast<std::size_t>(b)];
      reached.select(0, b).fill_(branch == 0 ? reference::compressed_count(length, Sizes{})
                                             : length);
    }
    const Tensor hidden = at::arange(rows[branch], cuda.dtype(at::kLong))
                              .view({1, 1, -1, 1})
                              .ge(reached.to(at::kCUDA).view({-1, 1, 1, 1}));
    for (auto* side : {&in.k, &in.v})
      (*side)[branch] = at::randn({batch, p.groups, rows[branch], 64}, cuda)
                            .masked_fill_(hidden, std::numeric_limits<double>::quiet_NaN());
  }
  return in;
}

struct Fused {
  Tensor o, indices;
};
Fused fused(DecodeInputs in) {
  in.lengths = in.lengths.to(at::kCUDA);
  const auto [o, indices] = fused_decode(in, 0);
  return {o, indices.cpu()};
}

// One sequence in float64, with the first rows of its caches.
class Exact {
public:
  Exact(const Problem& p, const DecodeInputs& in, int64_t b) : length_(p.lengths[std::size_t(b)]) {
    const auto row = [&](const Tensor& x) { return x.narrow(0, b, 1).to(at::kDouble); };
    q_ = row(in.q);
    gates_ = row(in.gates);
    for (std::size_t branch = 0; branch < 3; ++branch)
      for (const bool keys : {true, false}) {
        const Tensor cache = row(*(keys ? in.k : in.v)[branch]);
        const int64_t count = branch == 0 ? reference::compressed_count(length_, Sizes{}) : length_;
        Tensor part = cache.narrow(2, 0, std::min(count, cache.size(2)));
        if (branch == 2 && count > cache.size(2))
          part = cache.roll({-(count % cache.size(2))}, {2});
        (keys ? k_ : v_)[branch] = part.transpose(1, 2).contiguous();
      }
  }
  // Returns block scores [G, blocks] of the compressed branch.
  Tensor scores() const {
    const Tensor scores =
        at::zeros({1, 1, k_[0].size(2), reference::block_count(length_, Sizes{})}, q_.options());
    branch_forward(arguments(Branch::kCompressed, {}), {Tensor(), Tensor(), scores, Tensor()});
    return scores[0][0].cpu();
  }
  // Returns the output if these blocks [G, 16] are selected.
  Tensor out(const Tensor& indices) const {
    std::array<OptionalTensor, 3> branches;
    for (const Branch branch : {Branch::kCompressed, Branch::kSelected, Branch::kSliding}) {
      const Tensor o = at::empty_like(q_);
      const bool given = branch == Branch::kSelected &&
                         length_ > Sizes{}.selected_blocks * Sizes{}.selection_block;
      branch_forward(
          arguments(branch, given ? indices.to(at::kCUDA).view({1, 1, -1, 16}) : Tensor()),
          {o, Tensor(), Tensor(), Tensor()});
      branches[std::size_t(branch)] = o;
    }
    return combine(gates_, branches);
  }

private:
  BranchArguments arguments(Branch branch, const Tensor& indices) const {
    const auto i = static_cast<std::size_t>(branch);
    const int64_t first = branch == Branch::kSliding ? length_ - k_[i].size(1) : 0;
    return {branch, q_, k_[i], v_[i], indices, Sizes{}, 0.125, {length_ - 1, first}};
  }

  const int64_t length_;
  Tensor q_, gates_;
  std::array<Tensor, 3> k_, v_;
};

// The forced blocks must be chosen. No other chosen block may have a score clearly below that of a
// block that was left out.
void expect_choice(const Tensor& chosen, const Tensor& scores, const std::string& where) {
  const int64_t own = scores.size(0) - 1;
  std::vector<bool> is_chosen(static_cast<std::size_t>(own) + 1);
  int64_t before = -1;
  for (int64_t slot = 0; slot < 16; ++slot) {
    const int64_t block = chosen[slot].item<int64_t>();
    ASSERT_GT(block, before) << where << ": ascending";
    ASSERT_LE(block, own) << where;
    is_chosen[static_cast<std::size_t>(before = block)] = true;
  }
  for (const int64_t block : {int64_t(0), own - 1, own})
    EXPECT_TRUE(is_chosen[static_cast<std::size_t>(block)]) << where << ": block " << block;
  double least = INFINITY, best_left = 0;
  for (int64_t block = 1; block <= own - 2; ++block) {
    const double score = scores[block].item<double>();
    if (is_chosen[static_cast<std::size_t>(block)]) {
      least = std::min(least, score);
    } else {
      best_left = std::max(best_left, score);
    }
  }
  EXPECT_GE(least, best_left * (1 - 1e-4)) << where;
}

void expect_close(const Problem& p) {
  at::manual_seed(11);
  const DecodeInputs in = inputs_of(p);
  const Fused got = fused(in);
  EXPECT_TRUE(fused(in).o.equal(got.o)) << "twice the same bits";
  const auto batch = static_cast<int64_t>(p.lengths.size());
  for (int64_t b = 0; b < batch; b += batch > 8 ? 9 : 1) {
    const int64_t length = p.lengths[static_cast<std::size_t>(b)];
    const std::string where = "sequence " + std::to_string(b) + " of " + std::to_string(batch) +
                              ", " + std::to_string(length) + " tokens";
    if (length == 0) {
      EXPECT_TRUE(got.o[b].eq(0).all().item<bool>()) << where;
      continue;
    }
    const Exact exact(p, in, b);
    const Tensor indices = got.indices[b];
    if (length > 1024) {
      const Tensor scores = exact.scores();
      for (int64_t group = 0; group < p.groups; ++group)
        expect_choice(indices[group], scores[group], where);
    } else {
      for (int64_t slot = 0; slot < 16; ++slot)
        EXPECT_EQ(indices[0][slot].item<int64_t>(), slot * 64 < length ? slot : -1) << where;
    }
    const Tensor wanted = exact.out(indices);
    const double error = (got.o.narrow(0, b, 1).to(at::kDouble) - wanted).norm().item<double>() /
                         wanted.norm().item<double>();
    EXPECT_LE(error, 0.003) << where; // rounding to BF16 alone gives 0.0017
  }
}

TEST_F(FusedDecode, AgreesWithFloat64AtEdgesOfLengths) {
  for (const int64_t length : {1,   2,    31,   32,   33,   47,   48,   63,   64,   65,   511, 512,
                               513, 1000, 1023, 1024, 1025, 1026, 1039, 1040, 1088, 1089, 2111})
    expect_close({{length}, 2200});
}
TEST_F(FusedDecode, AgreesWithFloat64AtLongContexts) {
  expect_close({{4096}, 4096});
  expect_close({{32777}, 32800});
  expect_close({{131072}, 131072});
  expect_close({{5000}, 131072}); // a short sequence in a long cache
}
TEST_F(FusedDecode, SequencesHaveTheirOwnLengths) {
  Problem p{{}, 9000};
  for (int64_t b = 0; b < 64; ++b)
    p.lengths.push_back(b % 7 == 0 ? b : 1 + b * 142);
  expect_close(p);
  expect_close({std::vector<int64_t>(64, 8192), 8192});
}
TEST_F(FusedDecode, ServesOneToSixteenHeadsAGroup) {
  for (const int64_t heads : {1, 4, 8, 9, 16})
    expect_close({{3000, 40}, 3100, 2, heads, heads % 2 == 0});
  expect_close({{3000}, 3100, 5, 3, true});
}
TEST_F(FusedDecode, TakesAWindowOfAnyRows) {
  for (const int64_t rows : {512, 700, 3000})
    expect_close({{2900, 100, 513}, 3000, 2, 6, false, rows});
}
TEST_F(FusedDecode, TakesSharpScores) {
  expect_close({{20000}, 20000, 2, 6, false, 512, 8});
}

// Keys that repeat every 16 blocks have equal scores in every bit. Of equal scores the lowest block
// must be chosen.
TEST_F(FusedDecode, OfEqualScoresTheLowestBlock) {
  const Problem p{{40000, 40000}, 40000};
  at::manual_seed(12);
  DecodeInputs in = inputs_of(p);
  const int64_t rows = in.k[0]->size(2);
  in.k[0] =
      in.k[0]->narrow(2, 0, 64).repeat({1, 1, rows / 64 + 1, 1}).narrow(2, 0, rows).contiguous();
  const auto chosen_of = [&] { return fused(in).indices; };
  Tensor indices = chosen_of();
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t group = 0; group < 2; ++group) {
      std::vector<int64_t> blocks;
      for (int64_t slot = 1; slot < 16 - kForced + 1; ++slot)
        blocks.push_back(indices[b][group][slot].item<int64_t>());
      for (const int64_t block : blocks) {
        // Block 0 has no row before it, so block 16 has no equal below it.
        if (block <= 16) continue;
        EXPECT_TRUE(std::find(blocks.begin(), blocks.end(), block - 16) != blocks.end())
            << block << " without " << block - 16;
      }
    }
  in.k[0]->zero_(); // now all scores are equal
  indices = chosen_of();
  for (int64_t slot = 0; slot < 14; ++slot)
    EXPECT_EQ(indices[1][1][slot].item<int64_t>(), slot);
}

// The operator that users call returns the same, and names the shapes that it does not support.
TEST_F(FusedDecode, IsTheOperatorsFusedWay) {
  const Problem p{{1500, 300}, 1600};
  at::manual_seed(13);
  DecodeInputs in = inputs_of(p);
  const Tensor got = fused(in).o;
  const Tensor aten = decode_attention(in, {}, Kernels::kAten);
  in.lengths = in.lengths.to(at::kCUDA);
  EXPECT_TRUE(decode_attention(in, {}, Kernels::kFused).equal(got));
  EXPECT_LE((aten - got).to(at::kFloat).norm().item<double>(),
            0.01 * got.to(at::kFloat).norm().item<double>());
  EXPECT_THROW(decode_attention(in, {{32, 16, 64, 16, 256}, 0}, Kernels::kFused), c10::Error);
  in.k[0].reset();
  in.v[0].reset();
  EXPECT_THROW(decode_attention(in, {}, Kernels::kFused), c10::Error);
}

} // namespace
} // namespace nsa::ops
