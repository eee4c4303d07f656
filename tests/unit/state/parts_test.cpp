#include "daemon/state/parts.h"

#include "common/wire/part_sequence.h"

#include <gtest/gtest.h>

namespace nsa::state {
namespace {

TEST(Parts, FollowFromTheSlots) {
  EXPECT_EQ(parts_of({"cpu0", "cpu1"}, 2), (std::vector<Part>{{"", 0, 2}}));
  const std::vector<std::string> slots = {"cpu0", "cpu1", "bee/cpu0", "bee/cpu3", "cat/cpu0"};
  EXPECT_EQ(parts_of(slots, 5), (std::vector<Part>{{"", 0, 2}, {"bee", 2, 2}, {"cat", 4, 1}}));
  // A rung with fewer ranks uses the first slots, and so fewer nodes.
  EXPECT_EQ(parts_of(slots, 3), (std::vector<Part>{{"", 0, 2}, {"bee", 2, 1}}));
  EXPECT_EQ(parts_of(slots, 2), (std::vector<Part>{{"", 0, 2}}));
  EXPECT_TRUE(parts_of({}, 2).empty());
}

TEST(Parts, ASlotNamesItsNode) {
  EXPECT_EQ(slot_on("bee", "cpu0"), "bee/cpu0");
  EXPECT_EQ(slot_on("", "cpu0"), "cpu0");
  EXPECT_EQ(node_of_slot("bee/cpu0"), "bee");
  EXPECT_EQ(node_of_slot("GPU-1"), "");
}

TEST(PartSequence, KeepsPartAndNumberApart) {
  EXPECT_EQ(wire::sequence_of(0, 7), 7u) << "an attempt on one node has the numbers that it had";
  const uint64_t sequence = wire::sequence_of(3, 7);
  EXPECT_EQ(wire::part_of_sequence(sequence), 3u);
  EXPECT_EQ(wire::number_of_sequence(sequence), 7u);
  EXPECT_EQ(wire::sequence_of(3, 0), 0u) << "what no shim has numbered has no part";
  EXPECT_LT(sequence, wire::sequence_of(3, 8));
}

} // namespace
} // namespace nsa::state
