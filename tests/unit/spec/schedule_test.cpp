#include "common/spec/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace nsa::spec {
namespace {

TrainSection section(const std::string& schedule) {
  TrainSection t;
  t.steps = 100;
  t.warmup_steps = 10;
  t.learning_rate = 1e-3;
  t.final_learning_rate_ratio = 0.1;
  t.schedule = *choice_from<Schedule>(schedule);
  return t;
}

TEST(Schedule, WarmUpThenDown) {
  for (const char* name : {"cosine", "linear"}) {
    const auto t = section(name);
    EXPECT_DOUBLE_EQ(learning_rate(t, 1), 1e-4) << "the first step already trains";
    EXPECT_DOUBLE_EQ(learning_rate(t, 10), 1e-3);
    EXPECT_NEAR(learning_rate(t, 55), 1e-3 * (0.1 + 0.9 * 0.5), 1e-15) << "half-way down";
    EXPECT_NEAR(learning_rate(t, 100), 1e-4, 1e-15);
    for (uint64_t s = 11; s <= 100; ++s)
      EXPECT_LT(learning_rate(t, s), learning_rate(t, s - 1));
  }
  EXPECT_DOUBLE_EQ(learning_rate(section("constant"), 100), 1e-3);
  EXPECT_NE(learning_rate(section("cosine"), 30), learning_rate(section("linear"), 30));
}

TEST(Schedule, WithoutWarmUpStartsAtTheTop) {
  auto t = section("cosine");
  t.warmup_steps = 0;
  EXPECT_NEAR(learning_rate(t, 1), 1e-3, 1e-6);
  t.steps = 1;
  EXPECT_TRUE(std::isfinite(learning_rate(t, 1)));
}

} // namespace
} // namespace nsa::spec
