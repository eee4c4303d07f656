// The delay of the loop's ticks.
#include "daemon/control/loop_delay.h"

#include <gtest/gtest.h>

namespace nsa::control {
namespace {

TEST(LoopDelay, TicksAreLateAgainstTheirGrid) {
  const MonotonicTime start{0};
  const auto at = [&](double seconds) { return start + from_seconds(seconds); };
  LoopDelay delay(from_seconds(0.1), start);
  EXPECT_EQ(delay.summary()["ticks"], 0);
  EXPECT_NEAR(to_seconds(delay.tick(at(0.1))), 0, 1e-9);
  EXPECT_NEAR(to_seconds(delay.tick(at(0.28))), 0.08, 1e-9);
  EXPECT_NEAR(to_seconds(delay.tick(at(0.38))), 0.08, 1e-9) << "late again, though 0.1 s apart";
  EXPECT_NEAR(to_seconds(delay.tick(at(2.0))), 1.6, 1e-9);
  EXPECT_NEAR(to_seconds(delay.tick(at(2.1))), 0, 1e-9) << "the grid begins anew";
  EXPECT_EQ(delay.summary()["ticks"], 5);
  EXPECT_NEAR(delay.summary()["max"].get<double>(), 1.6, 1e-6);
  EXPECT_NEAR(delay.summary()["p50"].get<double>(), 0.08, 1e-6);
  for (int i = 1; i <= 600; ++i)
    (void)delay.tick(at(2.1 + 0.1 * i));
  EXPECT_LT(delay.summary()["max"].get<double>(), 1e-6) << "of the last minute";
}

} // namespace
} // namespace nsa::control
