// How long a verdict waits for the stacks of other nodes, and what happens to late ones.
#include "daemon/parts/evidence_of_parts.h"

#include <gtest/gtest.h>

namespace nsa::parts {
namespace {

constexpr Duration kSecond = std::chrono::seconds(1);
constexpr MonotonicTime kAsked{1'000'000'000'000};
constexpr size_t kAnt = 0, kBee = 1, kCow = 2;

bool heard(size_t) {
  return true;
}

state::EvidenceSaved saved(const std::string& folder, std::vector<std::string> findings = {}) {
  state::EvidenceSaved evidence;
  evidence.id = "hang-1";
  evidence.folder = folder;
  evidence.findings = std::move(findings);
  return evidence;
}

class EvidenceOfPartsTest : public testing::Test {
protected:
  EvidenceOfParts evidence_{"hang-1", {"ant", "bee", "cow"}, kBee, kAsked, 20 * kSecond};
};

TEST_F(EvidenceOfPartsTest, ItIsDueWithTheLastOfThem) {
  EXPECT_TRUE(evidence_.add(kBee, saved("/b", {"rank 1 stands"}), kAsked + kSecond));
  EXPECT_TRUE(evidence_.add(kCow, saved("/c", {"rank 2 waits"}), kAsked + kSecond));
  EXPECT_FALSE(evidence_.is_due(kAsked + kSecond, heard)) << "ant takes stacks";
  EXPECT_TRUE(evidence_.add(kAnt, saved("/a"), kAsked + 2 * kSecond));
  EXPECT_TRUE(evidence_.is_due(kAsked + 2 * kSecond, heard));
  const state::EvidenceSaved all = evidence_.joined();
  EXPECT_EQ(all.folder, "/b") << "the culprit's";
  EXPECT_EQ(all.findings, (std::vector<std::string>{"rank 1 stands", "rank 2 waits"}));
  EXPECT_EQ(evidence_.folder(kCow), "/c");
}

TEST_F(EvidenceOfPartsTest, ASlowNodeIsNotWaitedForLong) {
  EXPECT_TRUE(evidence_.add(kAnt, saved("/a"), kAsked + kSecond));
  EXPECT_TRUE(evidence_.add(kBee, saved("/b"), kAsked + 2 * kSecond));
  const MonotonicTime end = kAsked + 2 * kSecond + EvidenceOfParts::kPatience;
  EXPECT_FALSE(evidence_.is_due(end + Duration(-1), heard));
  EXPECT_TRUE(evidence_.is_due(end, heard));
  EXPECT_EQ(evidence_.joined().findings,
            std::vector<std::string>{"node cow has not sent the stacks of its ranks"});
  EXPECT_EQ(evidence_.folder(kCow), "");
}

TEST_F(EvidenceOfPartsTest, WhatComesLateCompletesTheVerdict) {
  EXPECT_TRUE(evidence_.add(kBee, saved("/b"), kAsked));
  EXPECT_TRUE(evidence_.add(kAnt, saved("/a"), kAsked));
  evidence_.note_told();
  EXPECT_TRUE(evidence_.add(kCow, saved("/c", {"rank 2 waits"}), kAsked + 9 * kSecond));
  EXPECT_TRUE(evidence_.is_due(kAsked + 9 * kSecond, heard));
  EXPECT_EQ(evidence_.joined().findings, std::vector<std::string>{"rank 2 waits"});
  EXPECT_EQ(evidence_.folder(kCow), "/c");
}

TEST_F(EvidenceOfPartsTest, ANodeThatIsNotHeardIsNotWaitedFor) {
  EXPECT_TRUE(evidence_.add(kBee, saved("/b"), kAsked));
  EXPECT_TRUE(evidence_.add(kAnt, saved("/a"), kAsked));
  EXPECT_FALSE(evidence_.is_due(kAsked, heard));
  EXPECT_TRUE(evidence_.is_due(kAsked, [](size_t part) { return part != kCow; }));
}

TEST_F(EvidenceOfPartsTest, WithoutTheCulpritsItEndsBeforeTheRanksAreKilled) {
  EXPECT_TRUE(evidence_.add(kAnt, saved("/a", {"rank 0 waits"}), kAsked));
  EXPECT_TRUE(evidence_.add(kCow, saved("/c"), kAsked));
  EXPECT_FALSE(evidence_.is_due(kAsked + 14 * kSecond, heard));
  EXPECT_TRUE(evidence_.is_due(kAsked + 15 * kSecond, heard));
  EXPECT_FALSE(evidence_.has_culprit());
  EXPECT_EQ(evidence_.joined().id, "hang-1");
  EXPECT_EQ(
      evidence_.joined().findings,
      (std::vector<std::string>{"rank 0 waits", "node bee has not sent the stacks of its ranks"}));
}

TEST_F(EvidenceOfPartsTest, EvidenceOfAnotherHangIsNone) {
  state::EvidenceSaved older = saved("/b");
  older.id = "hang-0";
  EXPECT_FALSE(evidence_.add(kBee, older, kAsked));
  EXPECT_FALSE(evidence_.add(7, saved("/x"), kAsked)) << "there is no such part";
  EXPECT_FALSE(evidence_.has_culprit());
}

} // namespace
} // namespace nsa::parts
