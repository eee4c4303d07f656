#include "worker/profile/attribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::profile {
namespace {

using ops::StepPart;
using ::testing::ElementsAre;

struct Row {
  StepPart part;
  double busy, idle;
  uint64_t spans;
  bool operator==(const Row&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Row& row) {
  return out << ops::name_of(row.part) << " " << row.busy << " " << row.idle << " " << row.spans;
}
std::vector<Row> rows(const Attribution& attribution) {
  std::vector<Row> out;
  for (const PartTime& time : attribution.parts)
    out.push_back({time.part, time.busy_ns, time.idle_ns, time.spans});
  return out;
}

TEST(Attribution, IdleTimeIsThatOfTheNextPart) {
  const auto a =
      attribute({{20, 50, StepPart::kMlp}, {60, 100, StepPart::kLoss}}, 0, 100, Idle::kNextPart);
  EXPECT_THAT(rows(a),
              ElementsAre(Row{StepPart::kMlp, 30, 20, 1}, Row{StepPart::kLoss, 40, 10, 1}));
  EXPECT_DOUBLE_EQ(a.ratio(), 1);
}

TEST(Attribution, OnAHostIdleTimeIsNobodys) {
  const auto a = attribute({{20, 50, StepPart::kMlp}}, 0, 100, Idle::kNothing);
  EXPECT_THAT(rows(a), ElementsAre(Row{StepPart::kMlp, 30, 0, 1}));
  EXPECT_DOUBLE_EQ(a.ratio(), 0.3);
}

TEST(Attribution, WhatNobodyKnowsIsNotAttributed) {
  const auto a = attribute({{0, 50, {}}, {50, 100, StepPart::kMlp}}, 0, 100, Idle::kNextPart);
  EXPECT_DOUBLE_EQ(a.ratio(), 0.5);
  // The idle time before it is not attributed either.
  const auto b = attribute({{50, 100, {}}}, 0, 100, Idle::kNextPart);
  EXPECT_DOUBLE_EQ(b.ratio(), 0);
}

TEST(Attribution, SpansBesideEachOtherShareTheTime) {
  const auto a = attribute({{0, 60, StepPart::kSelected}, {20, 40, StepPart::kSliding}}, 0, 60,
                           Idle::kNextPart);
  EXPECT_THAT(rows(a),
              ElementsAre(Row{StepPart::kSelected, 50, 0, 1}, Row{StepPart::kSliding, 10, 0, 1}));
}

TEST(Attribution, ACollectiveCountsWhereNothingElseRuns) {
  const auto a = attribute({{0, 100, StepPart::kReduction}, {10, 70, StepPart::kMlp}}, 0, 100,
                           Idle::kNextPart);
  EXPECT_THAT(rows(a),
              ElementsAre(Row{StepPart::kMlp, 60, 0, 1}, Row{StepPart::kReduction, 40, 0, 1}));
}

TEST(Attribution, SpansAreCutToTheWindow) {
  const auto a =
      attribute({{-50, 10, StepPart::kData}, {90, 150, StepPart::kLoss}}, 0, 100, Idle::kNextPart);
  EXPECT_THAT(rows(a),
              ElementsAre(Row{StepPart::kLoss, 10, 80, 1}, Row{StepPart::kData, 10, 0, 1}));
  EXPECT_DOUBLE_EQ(a.attributed_ns(), 100);
}

TEST(Attribution, TheTimelineJoinsWhatFollows) {
  const auto a =
      attribute({{0, 10, StepPart::kMlp}, {10, 30, StepPart::kMlp}, {30, 40, StepPart::kLoss}}, 0,
                40, Idle::kNothing);
  ASSERT_EQ(a.timeline.size(), 2u);
  EXPECT_EQ(a.timeline[0].end_ns, 30);
  EXPECT_EQ(a.timeline[1].part, StepPart::kLoss);
}

TEST(Innermost, AScopeHasWhatScopesWithinItLeave) {
  const auto spans = innermost({{0, 100, StepPart::kAttention},
                                {20, 60, StepPart::kCompressed},
                                {30, 40, StepPart::kSelection},
                                {100, 120, StepPart::kMlp}});
  std::vector<std::tuple<int64_t, int64_t, StepPart>> got;
  for (const PartSpan& span : spans)
    got.emplace_back(span.begin_ns, span.end_ns, *span.part);
  EXPECT_THAT(
      got, ElementsAre(
               std::tuple(0, 20, StepPart::kAttention), std::tuple(20, 30, StepPart::kCompressed),
               std::tuple(30, 40, StepPart::kSelection), std::tuple(40, 60, StepPart::kCompressed),
               std::tuple(60, 100, StepPart::kAttention), std::tuple(100, 120, StepPart::kMlp)));
}

} // namespace
} // namespace nsa::profile
