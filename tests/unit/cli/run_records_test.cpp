// Names of metrics as users type them.
#include "cli/run_records.h"

#include "tests/support/former_names.h"

#include <gmock/gmock.h>
#include <sstream>

namespace nsa::cli {
namespace {

using testing::HasSubstr;

TEST(MetricNames, AMemberOfAStepAndThatOfAnEvaluation) {
  EXPECT_EQ(parse_metric("tokens_per_second")->member, "tokens_per_second");
  EXPECT_EQ(parse_metric("heldout_loss")->kind, wire::RecordKind::kEvaluation);
  EXPECT_EQ(parse_metric("phase_seconds.forward")->warning, "");
  EXPECT_THAT(parse_metric("los").error().next, HasSubstr("loss"));
}

TEST(MetricNames, AnOldNameOfAPhaseIsTakenWithAWarning) {
  std::ostringstream err;
  const auto metric = read_metric("phase_seconds.gather", err);
  ASSERT_TRUE(metric);
  EXPECT_EQ(metric->member, "phase_seconds.all-gather-weights");
  EXPECT_EQ(err.str(), "warning: phase_seconds.gather is the name of an older build; it is now "
                       "phase_seconds.all-gather-weights\n");
}

TEST(MetricNames, EveryFormerPhaseIsTaken) {
  const auto phases = test::former_names("phase");
  EXPECT_GE(phases.size(), 13u);
  for (const std::string& phase : phases) {
    const auto metric = parse_metric("phase_seconds." + phase);
    ASSERT_TRUE(metric) << phase;
    EXPECT_EQ(metric->warning.empty(), metric->member == "phase_seconds." + phase) << phase;
  }
}

} // namespace
} // namespace nsa::cli
