// Compares nsa::decode_attention over caches with the oracle's newest token.
#include "nsa_model/ops/decode.h"
#include "tests/unit/ops/attention_case.h"

#include <gmock/gmock.h>

#include <functional>
#include <limits>

namespace nsa::ops {
namespace {

using at::Tensor;

const Sizes kSmall{8, 4, 16, 4, 24};

// Makes a cache from the rows of `keys` [1, K, G, D]. Rows that are not filled yet are NaN.
// Position p is in row p % rows.
Tensor cache_of(const Tensor& keys, int64_t rows) {
  Tensor cache = at::full({1, keys.size(2), rows, keys.size(3)},
                          std::numeric_limits<double>::quiet_NaN(), keys.options());
  for (int64_t position = 0; position < keys.size(1); ++position)
    cache.select(2, position % rows).copy_(keys.select(1, position));
  return cache;
}

struct Step {
  DecodeInputs in;
  Tensor wanted; // [1, 1, H, D]
};

Step step_of(int64_t length, int64_t rows, int64_t window_rows, const Sizes& sizes,
             std::array<bool, 3> on = {true, true, true}) {
  AttentionCase problem({1, length, 4, 2, 8}, sizes, at::kDouble);
  problem.only_tokens = {length - 1};
  Tensor gates = problem.tensors.gates;
  for (int64_t branch = 0; branch < 3; ++branch)
    if (!on[std::size_t(branch)]) gates.select(3, branch).zero_();
  const auto newest = [&](const Tensor& x) { return x.narrow(1, length - 1, 1).contiguous(); };
  Step step;
  step.in.q = newest(problem.tensors.q);
  step.in.gates = newest(gates);
  step.in.lengths = at::full({1}, length, at::kInt);
  const int64_t cache_rows[] = {std::max<int64_t>(1, reference::compressed_count(rows, sizes)),
                                rows, window_rows};
  for (std::size_t branch = 0; branch < 3; ++branch) {
    if (!on[branch]) continue;
    step.in.k[branch] = cache_of(*problem.tensors.k[branch], cache_rows[branch]);
    step.in.v[branch] = cache_of(*problem.tensors.v[branch], cache_rows[branch]);
  }
  step.wanted = newest(to_tensor(problem.oracle().o, problem.output_shape()));
  return step;
}

double difference(const Tensor& a, const Tensor& b) {
  return (a - b).abs().max().item<double>(); // NaN if either has a NaN
}

TEST(DecodeStep, EqualsTheOraclesNewestToken) {
  at::manual_seed(1);
  for (const int64_t length : {1, 7, 8, 9, 24, 25, 63, 64, 65, 66, 200}) {
    const Step step = step_of(length, 220, 24, kSmall);
    EXPECT_LE(difference(decode_attention(step.in, {kSmall, 0}, Kernels::kAten), step.wanted),
              1e-12)
        << length;
    // Only the window's cache has spare rows.
    const Step roomy = step_of(length, length, 31, kSmall);
    EXPECT_LE(difference(decode_attention(roomy.in, {kSmall, 0}, Kernels::kAten), roomy.wanted),
              1e-12)
        << length;
  }
  const Step step = step_of(1100, 1200, 512, Sizes{});
  EXPECT_LE(difference(decode_attention(step.in, {}, Kernels::kAten), step.wanted), 1e-12);
}

TEST(DecodeStep, LeavesOutBranches) {
  at::manual_seed(2);
  for (const std::array<bool, 3> on :
       {std::array{true, false, true}, {true, true, false}, {false, false, true}}) {
    const Step step = step_of(150, 160, 24, kSmall, on);
    EXPECT_LE(difference(decode_attention(step.in, {kSmall, 0}, Kernels::kAten), step.wanted),
              1e-12);
  }
}

// Each sequence has its own length. An empty one gives zeros.
TEST(DecodeStep, SequencesHaveTheirOwnLengths) {
  at::manual_seed(3);
  std::vector<Step> steps;
  for (const int64_t length : {9, 130, 130, 66})
    steps.push_back(step_of(length, 140, 24, kSmall));
  const auto joined = [&](auto part) {
    std::vector<Tensor> all;
    for (const Step& step : steps)
      all.push_back(part(step));
    return at::cat(all);
  };
  DecodeInputs in;
  in.q = joined([](const Step& s) { return s.in.q; });
  in.gates = joined([](const Step& s) { return s.in.gates; });
  in.lengths = joined([](const Step& s) { return s.in.lengths; });
  for (std::size_t branch = 0; branch < 3; ++branch) {
    in.k[branch] = joined([&](const Step& s) { return *s.in.k[branch]; });
    in.v[branch] = joined([&](const Step& s) { return *s.in.v[branch]; });
  }
  const Tensor wanted = joined([](const Step& s) { return s.wanted; });
  EXPECT_LE(difference(decode_attention(in, {kSmall, 0}, Kernels::kAten), wanted), 1e-12);
  in.lengths.select(0, 1).zero_();
  EXPECT_TRUE(
      decode_attention(in, {kSmall, 0}, Kernels::kAten).select(0, 1).eq(0).all().item<bool>());
}

TEST(DecodeStep, RefusesWhatDoesNotFit) {
  const Step step = step_of(100, 110, 24, kSmall);
  const auto refusal = [&](const std::function<void(DecodeInputs&)>& change,
                           Kernels kernels = Kernels::kAten) -> std::string {
    DecodeInputs in = step.in;
    change(in);
    try {
      decode_attention(in, {kSmall, 0}, kernels);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  using testing::HasSubstr;
  EXPECT_EQ(refusal([](DecodeInputs&) {}), "");
  EXPECT_THAT(refusal([](DecodeInputs&) {}, Kernels::kFused), HasSubstr("needs a CUDA GPU"));
  EXPECT_THAT(refusal([](DecodeInputs&) {}, Kernels::kReference), HasSubstr("use aten or fused"));
  EXPECT_THAT(refusal([](DecodeInputs& in) { in.v[1].reset(); }), HasSubstr("together"));
  EXPECT_THAT(refusal([](DecodeInputs& in) {
                in.k[0].reset();
                in.v[0].reset();
              }),
              HasSubstr("needs compressed keys"));
  EXPECT_THAT(refusal([](DecodeInputs& in) { in.lengths = in.lengths.to(at::kLong); }),
              HasSubstr("lengths must be int32"));
  EXPECT_THAT(refusal([](DecodeInputs& in) { in.lengths = in.lengths + 20; }),
              HasSubstr("rows for a sequence of 120 tokens"));
  EXPECT_THAT(refusal([](DecodeInputs& in) { in.q = in.q.expand({1, 2, 4, 8}); }),
              HasSubstr("expected [B, 1, H, D]"));
  EXPECT_THAT(refusal([](DecodeInputs& in) {
                in.k[2] = in.k[2]->to(at::kFloat);
                in.v[2] = in.v[2]->to(at::kFloat);
              }),
              HasSubstr("a cache is Float"));
}

} // namespace
} // namespace nsa::ops
