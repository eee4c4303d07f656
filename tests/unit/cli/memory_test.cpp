// nsactl memory: a table of the ranks' reports, with the estimate beside them.
#include "cli/render/memory_view.h"

#include <gtest/gtest.h>

namespace nsa::render {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

wire::EventView report(AttemptNumber attempt, Rank rank, const std::string& stage,
                       uint64_t resident, uint64_t peak = 0) {
  wire::EventView event;
  event.kind = wire::EventKind::kRankMemory;
  event.attempt = attempt;
  event.detail = {{"rank", rank},
                  {"stage", stage},
                  {"resident_bytes", resident * kMiB},
                  {"allocated_bytes", peak * kMiB / 2},
                  {"reserved_bytes", peak * kMiB * 2},
                  {"peak_bytes", peak * kMiB},
                  {"device_used_bytes", peak * kMiB * 3}};
  return event;
}

TEST(Memory, HasAColumnForEachRankAndARowForEachStage) {
  std::vector<wire::EventView> events = {report(1, 0, "boot", 999), report(2, 1, "boot", 110),
                                         report(2, 0, "boot", 100), report(2, 0, "model", 200),
                                         report(2, 0, "model", 210)};
  events[3].detail["rank"] = "none"; // damaged
  events.emplace_back();             // an event of another kind
  const auto reports = stage_memory(events, 2);
  ASSERT_EQ(reports.size(), 3u);
  EXPECT_EQ(memory_table(reports, {}), "STAGE  MEASURE      RANK 0     RANK 1\n"
                                       "boot   resident  100.0 MiB  110.0 MiB\n"
                                       "model  resident  210.0 MiB          -\n");
  EXPECT_TRUE(stage_memory(events, 3).empty());
}

TEST(Memory, OfADeviceHasFiveMeasures) {
  const auto reports = stage_memory({report(1, 0, "steady", 100, 400)}, 1);
  EXPECT_EQ(memory_table(reports, {}), "STAGE   MEASURE       RANK 0\n"
                                       "steady  resident   100.0 MiB\n"
                                       "steady  allocated  200.0 MiB\n"
                                       "steady  reserved   800.0 MiB\n"
                                       "steady  peak       400.0 MiB\n"
                                       "steady  device       1.2 GiB\n");
}

TEST(Memory, StandsBesideTheEstimateOfItsKind) {
  const nlohmann::json estimate = {
      {"memory_bytes", {{"total", 200 * kMiB}, {"on_gpu", 500 * kMiB}}}};
  EXPECT_EQ(memory_against_estimate(stage_memory({report(1, 0, "steady", 220)}, 1), estimate),
            "estimate 200.0 MiB a rank, 220.0 MiB came (10 % more)\n");
  EXPECT_EQ(memory_against_estimate(stage_memory({report(1, 0, "steady", 220, 400)}, 1), estimate),
            "estimate 500.0 MiB a rank on the device, 400.0 MiB came (20 % less)\n");
  EXPECT_EQ(memory_against_estimate(stage_memory({report(1, 0, "steady", 220)}, 1), {}), "");
}

} // namespace
} // namespace nsa::render
