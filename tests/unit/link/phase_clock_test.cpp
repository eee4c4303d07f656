// The effect of a rank's phases on its page and in its metrics.
#include "worker/link/phase_clock.h"

#include <gtest/gtest.h>

#include <unistd.h>

namespace nsa::train {
namespace {

TEST(PhaseClock, PageAndSecondsComeFromTheSameCalls) {
  auto page = progress::Page::create(0, 1);
  auto view = progress::Page::open(UniqueFd(::dup(page->fd())), false);
  PhaseClock clock(std::move(*page));
  clock.begin_step(3, 100);
  clock.enter(progress::Phase::kForward, 1);
  EXPECT_EQ(view->read_host()->phase, progress::Phase::kForward);
  EXPECT_EQ(view->read_host()->micro_step, 1u);
  clock.enter(progress::Phase::kBackward, 1);
  EXPECT_EQ(clock.enqueue(progress::CollectiveKind::kGradient, 0), 1u);
  EXPECT_EQ(view->read_host()->enqueued, 1u);
  EXPECT_EQ(view->read_collectives().find(1)->at.step, 3u);
  EXPECT_EQ(clock.position(), (progress::StepPosition{3, 2, progress::Phase::kBackward}));
  const auto seconds = clock.take_seconds();
  EXPECT_GT(seconds.at("forward"), 0.0);
  EXPECT_TRUE(clock.take_seconds().count("forward") == 0);
}

} // namespace
} // namespace nsa::train
