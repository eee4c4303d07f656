// Compares whole decoding steps, without a GPU, with plain loops in float64, for every cluster of a
// launch. Rows that no sequence has reached, the workspace and shared memory begin as NaN.
#include "tests/unit/kernels/decode_on_host.h"

namespace nsa::kernels::decode {
namespace {

struct StepProblem {
  std::vector<int> lengths;
  int tokens;
  int groups = 1;
  int heads = 6;
  bool gate_a_head = false;
  int window_rows = kWindow;
  int log_ctas = -1; // of a cluster; -1: as planned for a GPU of 132 multiprocessors
  bool sums_in_workspace = false;
  bool alone = false; // the kernel for a CTA with a multiprocessor to itself
};

class StepRun {
public:
  explicit StepRun(const StepProblem& p)
      : p_(p), kv_heads_(static_cast<int>(p.lengths.size()) * p.groups),
        q_(kv_heads_ * p.heads, 1, 1.5), out_(kv_heads_ * p.heads, 2, 0),
        rows_{std::max(1, compressed_count(p.tokens)), p.tokens, p.window_rows},
        lengths_(p.lengths.begin(), p.lengths.end()) {
    for (int branch = 0; branch < 3; ++branch)
      for (int side = 0; side < 2; ++side) {
        Rows cache(kv_heads_ * rows_[branch], static_cast<unsigned>(3 + 2 * branch + side), 1);
        for (int kv_head = 0; kv_head < kv_heads_; ++kv_head) {
          const int length = p.lengths[static_cast<std::size_t>(kv_head / p.groups)];
          for (int row = branch == 0 ? compressed_keys(length) : length; row < rows_[branch]; ++row)
            for (int d = 0; d < kHeadDim; ++d) // rows that no sequence has reached
              cache.set((kv_head * rows_[branch] + row) * kHeadDim + d, NAN);
        }
        caches_.push_back(cache);
      }
    std::mt19937 random(9);
    gates_.resize(static_cast<std::size_t>(3 * (p.gate_a_head ? kv_heads_ * p.heads : kv_heads_)));
    for (float& gate : gates_)
      gate = std::uniform_real_distribution<float>(0, 1)(random);
  }

  // The parameters without the workspace.
  DecodeParams params() {
    DecodeParams params{};
    params.batch = static_cast<int>(p_.lengths.size());
    params.groups = p_.groups;
    params.heads = p_.heads;
    params.gates_of_token = p_.gate_a_head ? p_.groups * p_.heads : p_.groups;
    params.tokens = p_.tokens;
    params.compressed_rows = rows_[0];
    params.window_rows = rows_[2];
    params.q = q_.data();
    params.gates = gates_.data();
    params.k_compressed = caches_[0].data();
    params.v_compressed = caches_[1].data();
    params.k_selected = caches_[2].data();
    params.v_selected = caches_[3].data();
    params.k_window = caches_[4].data();
    params.v_window = caches_[5].data();
    params.lengths = lengths_.data();
    params.out = const_cast<__nv_bfloat16*>(out_.data());
    indices.assign(static_cast<std::size_t>(kv_heads_) * kSlots, -7);
    params.indices = indices.data();
    params.plan =
        make_plan(kv_heads_, p_.heads, p_.tokens, 0, {132, Tile::kMostCtas, 1 << 20, 1 << 20});
    if (p_.log_ctas >= 0) params.plan.log_ctas = p_.log_ctas;
    params.plan.sums_in_workspace = p_.sums_in_workspace;
    if (p_.alone) params.plan.log_ctas = 0;
    params.plan.alone = p_.alone;
    return params;
  }

  template <int kHalves> void run() {
    DecodeParams params = this->params();
    const auto not_numbers = [](std::size_t bytes) {
      return std::vector<float4>((bytes + 15) / 16, float4{NAN, NAN, NAN, NAN});
    };
    std::vector<float4> workspace =
        not_numbers(workspace_bytes(params.plan, kv_heads_, p_.heads, p_.tokens));
    params.workspace = workspace.data();
    const int ctas = params.plan.ctas();
    for (int kv_head = 0; kv_head < kv_heads_; ++kv_head) {
      std::vector<std::vector<float4>> shared(
          static_cast<std::size_t>(ctas),
          not_numbers(shared_bytes<kHalves>(params.plan, p_.heads, p_.tokens)));
      HostCluster cluster(Tile::kWarps<kHalves>, shared);
      ASSERT_TRUE(cluster.run([&](int rank) {
        auto& own =
            *reinterpret_cast<Shared<kHalves>*>(shared[static_cast<std::size_t>(rank)].data());
        const int unit = kv_head * ctas + rank;
        if constexpr (kHalves == 1) {
          if (params.plan.alone) return decode_alone(params, unit, own);
        }
        decode_cta<kHalves>(params, unit, own);
      })) << kv_head;
    }
  }

  // Compares the results with plain loops in float64.
  void expect_right() const {
    for (int kv_head = 0; kv_head < kv_heads_; ++kv_head)
      expect_right(kv_head);
  }

  std::vector<int32_t> indices;
  const Rows& out() const { return out_; }

private:
  // Returns the rows of a branch's cache that the newest token sees.
  std::vector<int> seen(int branch, int length, const std::vector<int32_t>& blocks) const {
    std::vector<int> rows;
    if (branch == 0)
      for (int i = 0; i < compressed_keys(length); ++i)
        rows.push_back(i);
    if (branch == 1)
      for (const int32_t block : blocks)
        for (int i = block * kBlock; i < std::min(block * kBlock + kBlock, length); ++i)
          rows.push_back(i);
    if (branch == 2)
      for (int i = std::max(0, length - kWindow); i < length; ++i)
        rows.push_back(i % rows_[2]);
    return rows;
  }
  Row probabilities(int branch, int kv_head, int head, const std::vector<int>& rows) const {
    Row p;
    double largest = -INFINITY;
    double sum = 0;
    for (const int row : rows) {
      double score = 0;
      for (int d = 0; d < kHeadDim; ++d)
        score += q_.at(kv_head * p_.heads + head, d) *
                 caches_[static_cast<std::size_t>(2 * branch)].at(kv_head * rows_[branch] + row, d);
      p.push_back(score / 8);
      largest = std::max(largest, score / 8);
    }
    for (double& value : p)
      sum += value = std::exp(value - largest);
    for (double& value : p)
      value /= sum;
    return p;
  }
  void expect_right(int kv_head) const {
    const int length = p_.lengths[static_cast<std::size_t>(kv_head / p_.groups)];
    const std::string where =
        "KV head " + std::to_string(kv_head) + ", " + std::to_string(length) + " tokens";
    std::vector<int32_t> blocks;
    if (length > 0) {
      std::vector<Row> of_heads;
      for (int head = 0; head < p_.heads; ++head)
        of_heads.push_back(probabilities(0, kv_head, head, seen(0, length, {})));
      const reference::Sizes sizes;
      blocks = reference::select_blocks(reference::block_scores(of_heads, length - 1, sizes),
                                        length - 1, sizes);
      std::vector<int32_t> wanted = blocks;
      wanted.resize(kSlots, -1);
      const auto begin = indices.begin() + static_cast<std::ptrdiff_t>(kv_head) * kSlots;
      EXPECT_EQ(std::vector<int32_t>(begin, begin + kSlots), wanted) << where;
    }
    for (int head = 0; head < p_.heads; ++head) {
      Row wanted(kHeadDim);
      for (int branch = 0; branch < 3 && length > 0; ++branch) {
        const std::vector<int> rows = seen(branch, length, blocks);
        const Row p = probabilities(branch, kv_head, head, rows);
        const int gate = p_.gate_a_head ? kv_head * p_.heads + head : kv_head;
        for (std::size_t i = 0; i < rows.size(); ++i)
          for (int d = 0; d < kHeadDim; ++d)
            wanted[static_cast<std::size_t>(d)] +=
                static_cast<double>(gates_[static_cast<std::size_t>(3 * gate + branch)]) * p[i] *
                caches_[static_cast<std::size_t>(2 * branch + 1)].at(
                    kv_head * rows_[branch] + rows[i], d);
      }
      for (int d = 0; d < kHeadDim; ++d) {
        const double value = wanted[static_cast<std::size_t>(d)];
        ASSERT_NEAR(out_.at(kv_head * p_.heads + head, d), value, 1e-4 + 0.004 * std::abs(value))
            << where << ", head " << head << ", dimension " << d;
      }
    }
  }

  const StepProblem p_;
  const int kv_heads_;
  const Rows q_;
  Rows out_;
  std::vector<Rows> caches_; // keys and values of each branch
  const int rows_[3];
  std::vector<int32_t> lengths_;
  std::vector<float> gates_;
};

void expect_step(const StepProblem& p) {
  StepRun step(p);
  p.heads <= 8 ? step.run<1>() : step.run<2>();
  step.expect_right();
}

TEST(DecodeStep, EqualsPlainLoopsAtEdgesOfLengths) {
  for (const int length : {1, 31, 32, 48, 63, 64, 65, 511, 513, 1024, 1025, 1040, 1088, 1089})
    for (const int log_ctas : {0, 2})
      expect_step({{length}, 1200, 1, 6, false, kWindow, log_ctas});
}
TEST(DecodeStep, EqualsPlainLoopsInClustersOfAnySize) {
  for (const int log_ctas : {0, 1, 2, 3, 4})
    for (const int length : {2100, 9000}) // compares all blocks, or lists of the best
      expect_step({{length}, 9000, 1, 6, false, kWindow, log_ctas});
  // A short sequence in a long cache: most CTAs have no compressed step.
  expect_step({{1500}, 9000});
  expect_step({{9001}, 70000});
}
TEST(DecodeStep, EqualsPlainLoopsAlone) {
  for (const int length : {1, 31, 32, 48, 63, 64, 65, 511, 513, 1024, 1025, 1040, 1088, 1089})
    expect_step({{length}, 1200, 1, 6, false, kWindow, 0, false, true});
  for (const int length : {2100, 8192, 8257}) // up to 128 blocks, and more
    expect_step({{length}, 9000, 1, 6, true, 600, 0, length == 2100, true});
  expect_step({{0, 2500, 7}, 2600, 2, 8, false, kWindow, 0, false, true});
  expect_step({{20000}, 20000, 1, 1, false, kWindow, 0, false, true});
}
TEST(DecodeStep, TakesTheBestOfMoreBlocksThanAreComparedAtOnce) {
  expect_step({{9002}, 9100, 1, 6, false, kWindow, 0});
  expect_step({{20000}, 20000, 1, 2, false, kWindow, 1});
}
TEST(DecodeStep, KeepsSumsInTheWorkspaceWhereTheyHaveNoRoom) {
  expect_step({{5000, 1500}, 5000, 2, 6, false, kWindow, 1, true});
}
TEST(DecodeStep, SequencesHaveTheirOwnLengths) {
  expect_step({{0, 2500, 7, 1500}, 2600, 2});
}
TEST(DecodeStep, ServesOneToSixteenHeads) {
  for (const int heads : {1, 8, 9, 16})
    expect_step({{1700, 40}, 1800, 2, heads, heads % 2 == 0, kWindow, heads == 16 ? 4 : 1});
}
TEST(DecodeStep, TakesAWindowOfAnyRows) {
  for (const int rows : {512, 700, 2000})
    expect_step({{1990, 100, 513}, 2000, 1, 6, false, rows, 1});
}

// Loads and stores of 16 bytes would fault on the device, without naming the tensor.
TEST(DecodeStep, RefuseAddressesThatVectorsDoNotFit) {
  StepRun step({{1700, 40}, 1800, 2});
  float4 workspace[1] = {};
  DecodeParams params = step.params();
  params.workspace = workspace;
  EXPECT_EQ(check_decode(params), cudaSuccess);
  const auto refuses = [&](auto DecodeParams::* member) {
    for (const int bytes : {2, 4, 8}) {
      DecodeParams other = params;
      const auto moved = reinterpret_cast<std::uintptr_t>(other.*member) + bytes;
      other.*member = reinterpret_cast<std::remove_reference_t<decltype(other.*member)>>(moved);
      EXPECT_EQ(check_decode(other), cudaErrorMisalignedAddress) << bytes;
      EXPECT_EQ(launch_decode(other, nullptr), cudaErrorMisalignedAddress) << bytes;
    }
  };
  for (const auto cache :
       {&DecodeParams::q, &DecodeParams::k_compressed, &DecodeParams::v_compressed,
        &DecodeParams::k_selected, &DecodeParams::v_selected, &DecodeParams::k_window,
        &DecodeParams::v_window})
    refuses(cache);
  refuses(&DecodeParams::out);
  refuses(&DecodeParams::workspace);
}
TEST(DecodeStep, RefuseSizesThatAreNotServed) {
  StepRun step({{1700, 40}, 1800, 2});
  float4 workspace[1] = {};
  DecodeParams params = step.params();
  params.workspace = workspace;
  const auto refuses = [&](auto change) {
    DecodeParams other = params;
    change(other);
    EXPECT_EQ(launch_decode(other, nullptr), cudaErrorInvalidValue);
  };
  refuses([](DecodeParams& p) { p.batch = 0; });
  refuses([](DecodeParams& p) { p.heads = kMostHeads + 1; });
  refuses([](DecodeParams& p) { p.tokens = kMostDecodeTokens + 1; });
  refuses([](DecodeParams& p) { p.compressed_rows = compressed_keys(p.tokens) - 1; });
  refuses([](DecodeParams& p) { p.window_rows = kWindow - 1; });
  refuses([](DecodeParams& p) { p.gates_of_token = p.groups + 1; });
  refuses([](DecodeParams& p) { p.plan.log_ctas = -1; });
  refuses([](DecodeParams& p) { p.plan.log_ctas = 5; });
  refuses([](DecodeParams& p) {
    p.plan.alone = true;
    p.plan.log_ctas = 1;
  });
  refuses([](DecodeParams& p) {
    p.plan.alone = true;
    p.plan.log_ctas = 0;
    p.heads = kHalfHeads + 1;
  });
}

} // namespace
} // namespace nsa::kernels::decode
