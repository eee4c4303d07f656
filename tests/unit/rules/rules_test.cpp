// Decisions of training that need no tensors: precision, buckets, the rule for non-finite values.
#include "worker/rules/bucket_plan.h"
#include "worker/rules/non_finite.h"
#include "worker/rules/precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace nsa::train {
namespace {

TEST(Precision, IsWhatModeAndDeviceAllow) {
  using Mode = spec::PrecisionMode;
  using Compute = spec::Compute;
  const std::string slow = "this CPU has no fast BF16";
  struct Case {
    Mode mode;
    Compute compute;
    std::string why_slow;
    bool bf16, note;
  };
  for (const Case& c : {Case{Mode::kMaster, Compute::kAuto, "", true, false},
                        {Mode::kMaster, Compute::kAuto, slow, false, true},
                        {Mode::kMaster, Compute::kBf16, slow, true, true},
                        {Mode::kMaster, Compute::kFp32, "", false, false},
                        {Mode::kFp32, Compute::kAuto, "", false, false},
                        {Mode::kStochasticRounding, Compute::kAuto, "", true, false},
                        {Mode::kStochasticRounding, Compute::kAuto, slow, true, true},
                        {Mode::kPure, Compute::kBf16, "", true, true}}) {
    const auto p = choose_precision({c.mode, c.compute}, c.why_slow);
    ASSERT_TRUE(p) << name_of(c.mode) << ' ' << name_of(c.compute);
    EXPECT_EQ(p->bf16, c.bf16) << name_of(c.mode) << ' ' << name_of(c.compute);
    EXPECT_EQ(!p->note.empty(), c.note)
        << name_of(c.mode) << ' ' << name_of(c.compute) << ": " << p->note;
  }
  EXPECT_EQ(choose_precision({Mode::kStochasticRounding, Compute::kAuto}, "")->mode,
            PrecisionMode::kStochasticRounding);
  EXPECT_EQ(choose_precision({Mode::kPure, Compute::kAuto}, "")->mode, PrecisionMode::kPure);
  for (const auto& [mode, compute] : {std::pair{Mode::kStochasticRounding, Compute::kFp32},
                                      {Mode::kPure, Compute::kFp32},
                                      {Mode::kFp32, Compute::kBf16}})
    EXPECT_FALSE(choose_precision({mode, compute}, "")) << name_of(mode) << ' ' << name_of(compute);
}

TEST(BucketPlan, CoversEveryParameterOnceInReverse) {
  const std::vector<size_t> counts = {1000, 3, 17, 4096, 1, 64};
  const BucketPlan plan = plan_buckets(counts, 4096 * sizeof(float), 4);
  size_t expected = 0;
  for (size_t i = counts.size(); i-- > 0;) {
    EXPECT_EQ(plan.slots[i].offset, expected);
    EXPECT_EQ(plan.slots[i].count, counts[i]);
    EXPECT_EQ(plan.slots[i].offset % kSlotAlignment, 0u);
    expected += (counts[i] + 15) / 16 * 16;
    const auto& bucket = plan.buckets[plan.slots[i].bucket];
    EXPECT_GE(plan.slots[i].offset, bucket.begin);
    EXPECT_LE(plan.slots[i].offset + counts[i], bucket.end);
  }
  EXPECT_EQ(plan.parameter_elements, expected);
  EXPECT_EQ(plan.sync_begin, expected);
  // Buckets cover the gradient buffer without gaps. The sync scalars are in the last one.
  size_t at = 0, parameters = 0;
  for (const auto& bucket : plan.buckets) {
    EXPECT_EQ(bucket.begin, at);
    at = bucket.end;
    parameters += bucket.parameters;
  }
  EXPECT_EQ(at, plan.gradient_elements);
  EXPECT_EQ(plan.gradient_elements, expected + 16);
  EXPECT_EQ(parameters, counts.size());
  EXPECT_EQ(plan.buckets.size(), 2u);
}

TEST(BucketPlan, SharesAreEqualAndTogetherEverything) {
  const std::vector<size_t> counts = {1000, 3, 17, 4096, 1, 64};
  for (const size_t shards : {1, 2, 3, 8}) {
    const BucketPlan plan = plan_buckets(counts, 64 * sizeof(float), 5, shards);
    EXPECT_GT(plan.buckets.size(), 2u);
    size_t expected = 0;
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      for (size_t s = 0; s < shards; ++s) {
        const Range one = shard_of(plan, b, {s, shards});
        EXPECT_EQ(one.begin, expected);
        EXPECT_EQ(one.begin % kSlotAlignment, 0u);
        EXPECT_EQ(one.count(), shard_of(plan, b, {0, shards}).count());
        expected = one.end;
      }
      EXPECT_EQ(expected, plan.parameters_of(b).end);
    }
    EXPECT_EQ(expected, plan.parameter_elements);
    EXPECT_EQ(plan.sync_begin, plan.parameter_elements) << "the sync scalars are nobody's shard";
    for (size_t i = 0; i < counts.size(); ++i) {
      const Range bucket = plan.parameters_of(plan.slots[i].bucket);
      EXPECT_GE(plan.slots[i].offset, bucket.begin);
      EXPECT_LE(plan.slots[i].offset + counts[i], bucket.end);
    }
  }
}

TEST(BucketPlan, OneBigBucketOrOneEach) {
  EXPECT_EQ(plan_buckets({10, 10, 10}, size_t{1} << 30, 2).buckets.size(), 1u);
  EXPECT_EQ(plan_buckets({10, 10, 10}, 1, 2).buckets.size(), 3u);
}

TEST(NonFinite, ActsByRuleAndStopsPastTheLimit) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  spec::TrainSection t;
  t.non_finite = spec::NonFinite::kSkip;
  t.non_finite_limit = 2;
  NonFiniteRule rule(t);
  EXPECT_EQ(rule.observe(2.0, 1.0), NonFiniteAction::kNone);
  EXPECT_EQ(rule.observe(kNan, 1.0), NonFiniteAction::kSkip);
  EXPECT_EQ(rule.what(), "loss");
  EXPECT_EQ(rule.observe(2.0, std::numeric_limits<double>::infinity()), NonFiniteAction::kSkip);
  EXPECT_EQ(rule.what(), "gradient");
  EXPECT_EQ(rule.observe(2.0, 1.0), NonFiniteAction::kNone) << "a finite step ends the streak";
  EXPECT_EQ(rule.observe(kNan, kNan), NonFiniteAction::kSkip);
  EXPECT_EQ(rule.observe(kNan, kNan), NonFiniteAction::kSkip);
  EXPECT_EQ(rule.observe(kNan, kNan), NonFiniteAction::kStop);
  EXPECT_EQ(rule.total(), 5);
  t.non_finite = spec::NonFinite::kRollBack;
  EXPECT_EQ(NonFiniteRule(t).observe(kNan, 1), NonFiniteAction::kRollBack);
  EXPECT_EQ(NonFiniteRule(t, 2).observe(kNan, 1), NonFiniteAction::kStop)
      << "the streak survives a restart";
  t.non_finite = spec::NonFinite::kStop;
  EXPECT_EQ(NonFiniteRule(t).observe(kNan, 1), NonFiniteAction::kStop);
}

} // namespace
} // namespace nsa::train
