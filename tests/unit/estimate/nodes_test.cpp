// Which rank runs on which node, and how many bytes cross the network in a step.
#include "common/estimate/nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nsa::estimate {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<NodeSlots> kNodes = {{"", 4}, {"bee", 8}, {"cow", 4}, {"dog", 2}};

std::vector<NodePart> fewest(int ranks, const std::vector<NodeSlots>& nodes = kNodes) {
  return place({1, 0, ranks}, nodes);
}

TEST(Place, WhatFitsOnTheFirstNodeStaysThere) {
  EXPECT_THAT(fewest(4), ElementsAre(NodePart{"", 0, 4}));
}

TEST(Place, TakesWholeNodesAndForTheRestTheSmallestThatSuffices) {
  EXPECT_THAT(fewest(6), ElementsAre(NodePart{"", 0, 4}, NodePart{"dog", 4, 2}));
  EXPECT_THAT(fewest(7), ElementsAre(NodePart{"", 0, 4}, NodePart{"cow", 4, 3}));
  EXPECT_THAT(fewest(12), ElementsAre(NodePart{"", 0, 4}, NodePart{"bee", 4, 8}));
  EXPECT_THAT(fewest(14),
              ElementsAre(NodePart{"", 0, 4}, NodePart{"bee", 4, 8}, NodePart{"dog", 12, 2}));
}

TEST(Place, AllOrNothing) {
  EXPECT_EQ(fewest(18).size(), 4u);
  EXPECT_THAT(fewest(19), IsEmpty());
  EXPECT_THAT(fewest(2, {{"", 0}, {"bee", 8}}), IsEmpty()) << "rank 0 has no place";
  EXPECT_THAT(fewest(1, {}), IsEmpty());
}

TEST(Place, ANumberOfNodesIsFilledInTheirOrder) {
  EXPECT_THAT(place({2, 2, 4}, kNodes), ElementsAre(NodePart{"", 0, 2}, NodePart{"bee", 2, 2}));
  EXPECT_THAT(place({3, 4, 12}, {{"", 4}, {"bee", 3}, {"cow", 4}, {"dog", 4}}),
              ElementsAre(NodePart{"", 0, 4}, NodePart{"cow", 4, 4}, NodePart{"dog", 8, 4}));
  EXPECT_THAT(place({2, 4, 6}, kNodes), ElementsAre(NodePart{"", 0, 4}, NodePart{"bee", 4, 2}));
  EXPECT_THAT(place({5, 1, 5}, kNodes), IsEmpty());
  EXPECT_THAT(place({2, 5, 10}, kNodes), IsEmpty()) << "the first has too few";
}

// A rank sends each other rank the other's part of the gradients, and its own part of the weights.
TEST(Traffic, CountsWhatRanksOfOtherNodesGet) {
  spec::RunSpec spec;
  spec.parallel.ranks = 4;
  const auto parts = place({2, 3, 4}, {{"", 3}, {"bee", 3}});
  const double count = static_cast<double>(parameters(spec).total());
  const NodeTraffic fp32 = traffic(spec, {}, parts);
  ASSERT_EQ(fp32.sent.size(), 2u);
  // 3 ranks, 1 rank elsewhere, a quarter of 4 + 4 bytes for each parameter.
  EXPECT_NEAR(static_cast<double>(fp32.sent[0]), 3 * count * 8 / 4, 16);
  EXPECT_EQ(fp32.sent[0], fp32.sent[1]) << "what one sends the other gets";
  // NCCL uses a ring: three quarters of the bytes cross each border between nodes.
  const NodeTraffic ring = traffic(spec, {true, false}, place({2, 2, 4}, {{"", 2}, {"bee", 2}}));
  EXPECT_NEAR(static_cast<double>(ring.sent[0]), 3 * count * 8 / 4, 16);
  EXPECT_EQ(traffic(spec, {true, false}, place({1, 4, 4}, {{"", 4}})).sent[0], 0);
  spec.parallel.compress = spec::Compress::kBf16;
  EXPECT_NEAR(static_cast<double>(traffic(spec, {false, true}, parts).sent[0]), 3 * count * 4 / 4,
              16);
  spec.parallel.shard_update = false; // the reduced gradients are gathered instead of the weights
  EXPECT_NEAR(static_cast<double>(traffic(spec, {}, parts).sent[0]), 3 * count * 4 / 4, 16);
}

TEST(Traffic, SmallBucketsAreMoreExchanges) {
  spec::RunSpec spec;
  const auto parts = place({2, 1, 2}, {{"", 1}, {"bee", 1}});
  EXPECT_EQ(traffic(spec, {}, parts).exchanges, 4) << "of one bucket, and the sync scalars";
  spec.parallel.bucket_mib = 25;
  EXPECT_GT(traffic(spec, {}, parts).exchanges, 30);
  const NodeTraffic small = traffic(spec, {}, parts);
  EXPECT_NEAR(exchange_seconds(small, 1e9, 0.001) - exchange_seconds(small, 1e9, 0),
              0.001 * small.exchanges, 1e-9);
}

TEST(Traffic, TheSlowestMeasuredLinkSaysWhatAStepCosts) {
  const std::vector<NodePart> parts = {{"ant", 0, 1}, {"bee", 1, 1}, {"cow", 2, 1}};
  NodeTraffic traffic;
  traffic.sent = {1'000'000, 1'000'000, 1'000'000};
  traffic.exchanges = 4;
  EXPECT_FALSE(measured_cost(traffic, parts, {}));
  EXPECT_FALSE(measured_cost(traffic, parts, {{"ant", "dog", 1, 1}})) << "not of this run";
  const auto cost =
      measured_cost(traffic, parts,
                    {{"bee", "ant", 0.001, 1e8}, {"ant", "cow", 0.002, 1e7}, {"ant", "dog", 1, 1}});
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->slowest.other, "cow");
  EXPECT_NEAR(cost->seconds, 0.1 + 4 * 0.002, 1e-9);
  EXPECT_EQ(cost->measured, 2);
  EXPECT_EQ(cost->pairs, 3);
}

TEST(Traffic, OneNodeSendsNothing) {
  spec::RunSpec spec;
  const NodeTraffic alone = traffic(spec, {}, {{"", 0, 8}});
  EXPECT_THAT(alone.sent, ElementsAre(0));
  EXPECT_EQ(exchange_seconds(alone, 1e9, 1), 0);
}

} // namespace
} // namespace nsa::estimate
