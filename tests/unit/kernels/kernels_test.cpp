// The attention kernels' arithmetic of indices and sizes, which needs no GPU: rows of tiles, units
// of the backward. nsa-kernel-check tests what the kernels compute.
#include "nsa_model/choice/first_tokens.h"
#include "nsa_model/kernels/block_backward/range_units.cuh"
#include "nsa_model/kernels/block_lists/rounds.cuh"
#include "nsa_model/kernels/causal/causal.h"
#include "nsa_model/kernels/combine/round_row.cuh"
#include "nsa_model/kernels/common/heads.cuh"
#include "nsa_model/kernels/common/limits.h"
#include "nsa_model/kernels/fused/fused.h"
#include "nsa_model/kernels/fused/schedule.h"
#include "nsa_model/kernels/given_indices/canonical_row.cuh"
#include "nsa_model/kernels/portable/key_gradient/key_gradient.h"
#include "nsa_model/kernels/portable/key_gradient/key_units.cuh"
#include "nsa_model/kernels/portable/list_attend/list_attend.h"

#include <algorithm>
#include <array>
#include <climits>
#include <gtest/gtest.h>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace nsa::kernels {
namespace {

TEST(Heads, RowsAreTokensTimesHeads) {
  for (int count = 1; count <= kMostHeads; ++count) {
    const AnyHeads heads(count);
    for (int row = 0; row < 4096; ++row) {
      ASSERT_EQ(heads.token(row), row / count) << count;
      ASSERT_EQ(heads.head(row), row % count) << count;
    }
    EXPECT_LE(heads.tokens(96) * count, 96);
    EXPECT_GT((heads.tokens(96) + 1) * count, 96);
    EXPECT_GE(heads.statistics(), count);
    EXPECT_EQ(heads.statistics() * sizeof(float) % 16, 0U); // the granularity of a bulk copy
  }
}

TEST(Heads, SixAreTheSameEitherWay) {
  const SixHeads six(6);
  const AnyHeads any(6);
  for (int row = 0; row < 192; ++row) {
    EXPECT_EQ(six.token(row), any.token(row));
    EXPECT_EQ(six.head(row), any.head(row));
  }
  EXPECT_EQ(six.tokens(192), any.tokens(192));
  EXPECT_EQ(six.statistics(), any.statistics());
}

// Every pair of a column's key and a token that sees it is in exactly one unit. Each unit has its
// own slot. The sum over units finds all of them, in the order of tokens.
void expect_units_cover(KeyRange range, int window, int end, int kv_heads, int workers,
                        int round_rows = 0) {
  const RangeUnits units(range, window, end, kv_heads, workers, round_rows);
  std::vector<std::vector<RangeUnit>> of_column(static_cast<std::size_t>(kv_heads) *
                                                static_cast<std::size_t>(units.columns));
  std::vector<int> steps(static_cast<std::size_t>(workers), 0);
  std::set<int64_t> slots;
  for (int share = 0; share < units.shares(); ++share) {
    RangeUnits::Walk walk = units.walk(share);
    RangeUnit unit;
    while (units.next(walk, unit)) {
      ASSERT_LT(unit.begin, unit.end);
      ASSERT_LT(unit.slot, units.slots());
      EXPECT_TRUE(slots.insert(unit.slot).second);
      of_column.at(static_cast<std::size_t>(unit.kv_head * units.columns + unit.column))
          .push_back(unit);
      steps[static_cast<std::size_t>(share % workers)] +=
          (unit.end - unit.begin + RangeUnits::kStep - 1) / RangeUnits::kStep;
    }
  }
  for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
    for (int column = 0; column < units.columns; ++column) {
      std::vector<RangeUnit>& parts =
          of_column[static_cast<std::size_t>(kv_head * units.columns + column)];
      std::sort(parts.begin(), parts.end(),
                [](const RangeUnit& a, const RangeUnit& b) { return a.begin < b.begin; });
      int token = units.first(column);
      for (const RangeUnit& part : parts) {
        ASSERT_EQ(part.begin, token) << "column " << column << " of " << end;
        token = part.end;
      }
      EXPECT_EQ(token, units.last(column));
      std::size_t visited = 0;
      units.for_units_of(kv_head, column, [&](int64_t slot) {
        ASSERT_LT(visited, parts.size());
        EXPECT_EQ(slot, parts[visited++].slot);
      });
      EXPECT_EQ(visited, parts.size());
      EXPECT_LE(parts.size(), static_cast<std::size_t>(units.most_units_of_a_column()));
    }
  }
  if (!units.whole) { // equal shares differ by at most one step in every round
    const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
    EXPECT_LE(*most - *least, units.kv_head_rounds * units.bands);
  }
}

// Returns the most steps of a worker divided by the mean. In every turn each worker takes one
// share.
double most_of_a_worker(const RangeUnits& units, int workers) {
  std::vector<int> steps(static_cast<std::size_t>(workers), 0);
  std::set<int> taken;
  int all = 0;
  for (int turn = 0; turn * workers < units.shares(); ++turn) {
    for (int worker = 0; worker < workers; ++worker) {
      const int share = RangeUnits::share_of_turn(turn, worker, workers);
      if (share >= units.shares()) continue;
      EXPECT_TRUE(taken.insert(share).second);
      RangeUnits::Walk walk = units.walk(share);
      RangeUnit unit;
      while (units.next(walk, unit)) {
        const int more = (unit.end - unit.begin + RangeUnits::kStep - 1) / RangeUnits::kStep;
        steps[static_cast<std::size_t>(worker)] += more;
        all += more;
      }
    }
  }
  EXPECT_EQ(taken.size(), static_cast<std::size_t>(units.shares()));
  return static_cast<double>(*std::max_element(steps.begin(), steps.end())) * workers / all;
}

TEST(RangeUnits, PairsOfColumnsAreDealtEvenly) {
  constexpr int kCausal = 2 * kMaxSequence;
  constexpr int kWorkers = 132;
  for (const int sequence : {1000, 1024, 2048, 4096, 8192}) { // 32,768 tokens with two groups
    const int kv_heads = 2 * (32768 / sequence);
    const RangeUnits causal(KeyRange::kWindow, kCausal, sequence, kv_heads, kWorkers);
    EXPECT_TRUE(causal.paired && causal.whole) << sequence;
    EXPECT_LT(most_of_a_worker(causal, kWorkers), 1.04) << sequence;
  }
  const RangeUnits window(KeyRange::kWindow, kWindow, 1024, 64, kWorkers);
  EXPECT_LT(most_of_a_worker(window, kWorkers), 1.04);
  int paired = 0;
  for (int columns = 1; columns <= 20; ++columns) {
    for (int kv_heads = 1; kv_heads <= 260; kv_heads += 3) {
      const RangeUnits units(KeyRange::kBlocks, kCausal, 128 * columns, kv_heads, kWorkers);
      if (!units.paired) continue;
      ++paired;
      EXPECT_LT(most_of_a_worker(units, kWorkers), 1.07) << columns << " x " << kv_heads;
    }
  }
  EXPECT_GT(paired, 50);
  EXPECT_FALSE(RangeUnits(KeyRange::kWindow, kCausal, 1280, 16, kWorkers).whole); // too few units
}

TEST(RangeUnits, CoverEveryToken) {
  for (const int end : {1, 31, 32, 640, 641, 1000, 5000, 34000}) {
    for (const int kv_heads : {1, 2, 3, 11, 33}) {
      for (const int workers : {1, 7, 132}) {
        expect_units_cover(KeyRange::kWindow, kWindow, end, kv_heads, workers);
        expect_units_cover(KeyRange::kWindow, 2 * kMaxSequence, end, kv_heads, workers);
        expect_units_cover(KeyRange::kCompressed, 0, end, kv_heads, workers);
        expect_units_cover(KeyRange::kCompressed, 0, end, kv_heads, workers, 8192);
        if (end <= kMostMaskedTokens)
          expect_units_cover(KeyRange::kBlocks, 2 * kMaxSequence, end, kv_heads, workers);
      }
    }
  }
}

TEST(RangeUnits, ResultsAreLinearInTheSequence) {
  const auto slots = [](int sequence) {
    return RangeUnits(KeyRange::kCompressed, 0, sequence, 2, 132).slots();
  };
  EXPECT_LE(slots(131072), 2 * slots(65536));
  EXPECT_LE(slots(65536), 2 * slots(32768));
}

// Every listed (token, KV head) has its own row of partial results in its round's buffer. The merge
// finds that row. It also visits the tokens before the lists, which have no row.
void expect_rows_apart(const AttentionShape& shape, const ListRound& round, int from, int buffer) {
  std::vector<bool> taken(static_cast<std::size_t>(buffer), false);
  for (int kv_head = round.first_kv_head; kv_head < round.first_kv_head + round.kv_heads;
       ++kv_head) {
    const PairRows rows(shape, round, kv_head);
    for (int token = round.first_token(); token < round.past_token(); ++token) {
      const int row = rows.row(token);
      ASSERT_TRUE(row >= 0 && row < buffer && !taken[static_cast<std::size_t>(row)]);
      taken[static_cast<std::size_t>(row)] = true;
    }
  }
  std::set<int64_t> visited;
  for (int64_t index = 0; index < visited_rows(round, from); ++index) {
    const RoundRow at(shape, round, from, index);
    ASSERT_TRUE(at.token >= from && at.token < round.past_token());
    ASSERT_TRUE(visited.insert(at.row).second);
    const int64_t batch = at.row / shape.groups / shape.sequence;
    ASSERT_EQ(at.row / shape.groups % shape.sequence, at.token);
    const int kv_head = static_cast<int>(batch * shape.groups + at.row % shape.groups);
    ASSERT_TRUE(kv_head >= round.first_kv_head && kv_head < round.first_kv_head + round.kv_heads);
    if (at.token < round.first_token()) continue;
    ASSERT_EQ(at.pair_row, PairRows(shape, round, kv_head).row(at.token));
  }
}

TEST(ListRounds, TakeEveryListedTokenOnceAndKeepRowsApart) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 1, 1}, AttentionShape{5, 200, 3}, AttentionShape{16, 2048, 2},
        AttentionShape{3, 20000, 3}, AttentionShape{1, 131072, 2}, AttentionShape{5, 32768, 1},
        AttentionShape{1, 24577, 1}, AttentionShape{2, 30000, 1},
        AttentionShape{16, 2048, 2, 6, 128}}) {
    for (const int first_token : {0, 1024, 1280, 1300}) {
      if (first_token >= shape.sequence) continue;
      SCOPED_TRACE(testing::Message()
                   << shape.batch << " x " << shape.sequence << " from " << first_token);
      const ListCut cut = list_cut(shape, first_token);
      std::vector<int> listed(static_cast<std::size_t>(shape.batch * shape.groups), first_token);
      int kv_heads = 0;
      const int buffer = list_round(shape, cut, 0).listed_rows();
      for (int i = 0; i < list_rounds(shape); ++i) {
        const ListRound round = list_round(shape, cut, i);
        EXPECT_EQ(round.first_kv_head, kv_heads);
        ASSERT_GT(round.kv_heads, 0);
        EXPECT_TRUE(round.kv_heads == 1 || round.kv_heads * shape.sequence <= round_rows_of(shape));
        expect_rows_apart(shape, round, 0, buffer);
        kv_heads += round.kv_heads;
        int lists = round.first_list();
        const int most = std::max(kBackwardRoundRows, shape.sequence / kMostSections + kListChunk);
        for (int j = 0; j < backward_rounds(round); ++j) {
          const ListRound part = backward_round(round, j);
          EXPECT_EQ(part.first_list(), lists); // its units follow those of the last one
          lists += part.lists();
          EXPECT_LE(part.listed_rows(), most);
          expect_rows_apart(shape, part, part.first_token(), part.listed_rows());
          for (int kv_head = part.first_kv_head; kv_head < part.first_kv_head + part.kv_heads;
               ++kv_head) {
            int& next = listed[static_cast<std::size_t>(kv_head)];
            EXPECT_EQ(part.first_token(), next);
            EXPECT_LT(next, part.past_token());
            next = part.past_token();
          }
        }
        EXPECT_EQ(lists, round.first_list() + round.lists());
      }
      EXPECT_EQ(kv_heads, shape.batch * shape.groups);
      for (const int end : listed)
        EXPECT_EQ(end, shape.sequence);
      for (int chunk = first_token / kListChunk; chunk * kListChunk < shape.sequence; ++chunk) {
        const int section = cut.section_of_chunk(chunk);
        const int token = std::max(first_token, chunk * kListChunk);
        EXPECT_TRUE(token >= cut.begin(section) && token < cut.end(section));
      }
    }
  }
}

// Every (listed token, block) pair is visited once: by a joined unit, or by the rest of the block's
// list.
TEST(JoinedBlocks, TakeThePairsThatListsLeaveOut) {
  for (const int first_token : {1024, 1280, 1536}) {
    for (const int sequence : {1537, 1568, 1599, 1600, 1601, 2048, 4000}) {
      const JoinedBlocks joined = {first_token, sequence};
      const int blocks = (sequence + kBlock - 1) / kBlock;
      std::vector<std::vector<int>> lists(static_cast<std::size_t>(blocks));
      std::set<std::pair<int, int>> left; // (token, block) pairs of the three joined blocks
      std::mt19937 random(5);
      for (int token = first_token; token < sequence; ++token) {
        const int own = token / kBlock;
        for (int block = 0; block <= own; ++block) {
          const bool always = block == 0 || block >= own - 1;
          if (!always && random() % 3 != 0) continue;
          lists[static_cast<std::size_t>(block)].push_back(token);
          if (always) left.insert({token, block});
        }
      }
      for (int unit = 0; unit < joined.units_of_a_kv_head(); ++unit) {
        const int begin = joined.token_of(unit);
        const int end = std::min(begin + kJoinedTokens, sequence);
        ASSERT_LT(begin, end);
        ASSERT_EQ(begin / kBlock, (end - 1) / kBlock);
        for (int token = begin; token < end; ++token) {
          for (int part = 0; part < kJoinedParts; ++part)
            ASSERT_EQ(left.erase({token, JoinedBlocks::block_of(begin, part)}), 1U);
          EXPECT_EQ(JoinedBlocks::block_of(begin, kJoinedParts - 1), token / kBlock);
        }
      }
      EXPECT_TRUE(left.empty()) << sequence;
      for (int block = 0; block < blocks; ++block) {
        const std::vector<int>& list = lists[static_cast<std::size_t>(block)];
        // This also holds if the list is cut between any two blocks.
        for (const int cut : {first_token, first_token + 320, sequence}) {
          const auto middle = std::lower_bound(list.begin(), list.end(), cut);
          const auto expect_left_out = [&](auto begin, auto end, int from, int past) {
            const int out = joined.left_out(block, from, past);
            for (auto token = begin; token < end; ++token) {
              const bool always = block == 0 || block >= *token / kBlock - 1;
              ASSERT_EQ(token - begin < out, always) << "block " << block << " of " << sequence;
            }
          };
          expect_left_out(list.begin(), middle, first_token, cut);
          expect_left_out(middle, list.end(), cut, sequence);
        }
      }
    }
  }
  EXPECT_EQ(JoinedBlocks().units_of_a_kv_head(), 0);
}

// CTAs claim in any order. Every unit is taken once. Then the counter is 0 for the next launch,
// with other units and other CTAs.
TEST(UnitRange, ClaimsTakeEveryUnitOnceAndLeaveTheCounterAtZero) {
  std::mt19937 random(3);
  uint32_t counter = 0;
  for (const int ctas : {1, 2, 7, 132}) {
    for (const int count : {0, 1, 2, ctas - 1, ctas, ctas + 1, 3 * ctas - 1, 1000}) {
      const int joined = count / 3;
      const UnitRange units = {17, 17 + count - joined, joined};
      const auto claim = [&] { // atomicInc(&counter, units.last_claim())
        const uint32_t old = counter;
        counter = old >= units.last_claim() ? 0 : old + 1;
        return static_cast<int>(old);
      };
      std::vector<int> running; // the unit that each CTA takes next
      for (int cta = 0; cta < ctas; ++cta) {
        running.push_back(units.claimed(cta - ctas, ctas));
        EXPECT_EQ(running.back(), units.begin + cta);
      }
      std::multiset<int> taken;
      while (!running.empty()) {
        int& unit = running[random() % running.size()];
        if (unit < units.end + units.joined) {
          taken.insert(unit);
          unit = units.claimed(claim(), ctas);
        } else {
          unit = running.back();
          running.pop_back();
        }
      }
      ASSERT_EQ(taken.size(), static_cast<std::size_t>(count)) << ctas << " CTAs";
      int expected = units.begin;
      for (const int unit : taken)
        EXPECT_EQ(unit, expected++);
      EXPECT_EQ(counter, 0U) << count << " units, " << ctas << " CTAs";
    }
  }
}

// The rest becomes a set in ascending order. Rows have any number of blocks: repeated, later or out
// of range.
TEST(GivenIndices, BecomeTheSetOfBlocksThatATokenSees) {
  std::mt19937 random(6);
  for (int round = 0; round < 20000; ++round) {
    const int own = static_cast<int>(random() % 40);
    const int width = 1 + static_cast<int>(random() % 60); // small, so many blocks are repeated
    int32_t row[kSlots];
    std::set<int32_t> wanted;
    for (int32_t& block : row) {
      block = static_cast<int32_t>(random() % static_cast<unsigned>(width)) - width / 3;
      if (random() % 8 == 0) block = random() % 2 == 0 ? INT32_MAX : INT32_MIN;
      if (block >= 0 && block <= own) wanted.insert(block);
    }
    canonical_row(row, own);
    std::size_t slot = 0;
    for (const int32_t block : wanted)
      ASSERT_EQ(row[slot++], block) << round;
    while (slot < kSlots)
      ASSERT_EQ(row[slot++], -1) << round;
  }
}

TEST(GivenIndices, OfTheSelectionStayAsTheyAre) {
  const int32_t selected[kSlots] = {0, 3, 4, 7, 9, 10, 11, 12, 15, 20, 21, 22, 30, 31, 38, 39};
  int32_t row[kSlots];
  std::copy(std::begin(selected), std::end(selected), row);
  canonical_row(row, 39);
  EXPECT_TRUE(std::equal(std::begin(row), std::end(row), selected));
}

TEST(QueryMajor, TakesShortSequencesWholeAndTheStartOfLongerOnes) {
  const auto tokens = [](int sequence, int heads = 6, int wanted = 0) {
    return query_major_tokens({1, sequence, 2, heads}, {.query_major_tokens = wanted});
  };
  EXPECT_EQ(tokens(700), 700);
  EXPECT_EQ(tokens(1536), 1536);
  EXPECT_EQ(tokens(1537), 1280);
  EXPECT_EQ(tokens(2048), 1280);
  EXPECT_EQ(tokens(32768), 1280);
  EXPECT_EQ(tokens(2048, 5), kDenseFirstTokens); // masks exist only for six heads
  EXPECT_EQ(tokens(2048, 6, 1024), 1024);
  EXPECT_EQ(tokens(4096, 6, 4096), kMostMaskedTokens);
}

TEST(QueryMajor, IsAllOrNothingInThePortableFamily) {
  const auto tokens = [](int sequence, int wanted = 0) {
    return query_major_tokens({1, sequence, 2, 5}, {KernelFamily::kPortable, wanted});
  };
  const int most = choice::kPortableWholeUpTo;
  EXPECT_EQ(tokens(most), most);
  EXPECT_EQ(tokens(most + 1), 0);
  EXPECT_EQ(tokens(1025, 1024), 0);
  EXPECT_EQ(tokens(4096, 4096), 4096);
}

TEST(FusedWorkspace, GrowsWithTheSequenceAndNotFaster) {
  const auto bytes = [](int sequence) {
    const AttentionShape shape = {1, sequence, 2};
    return static_cast<double>(
        std::max(fused_forward_workspace_bytes(shape), fused_backward_workspace_bytes(shape)));
  };
  EXPECT_LE(bytes(65536) / bytes(32768), 2.02);
  EXPECT_LE(bytes(131072) / bytes(65536), 2.05);
}

// A pair has 512 bytes instead of 768 and 32. This holds only for six heads, and for the slots that
// joined blocks leave.
TEST(FusedWorkspace, IsSmallerWherePartialResultsArePacked) {
  const AttentionShape six = {1, 32768, 2};
  const auto rows = [](int first) { return std::size_t{2} * (32768 - first); };
  EXPECT_EQ(fused_forward_workspace_bytes(six), rows(1280) * kJoinedSlots * 512);
  const AttentionShape four = {1, 32768, 2, 4};
  EXPECT_EQ(fused_forward_workspace_bytes(four),
            rows(kDenseFirstTokens) * kSlots * (4 * 64 * 2 + 4 * 4));
  const AttentionShape sixteen = {1, 32768, 2, 16}; // docs/design/kernels-buffers.md
  EXPECT_EQ(fused_forward_workspace_bytes(sixteen),
            rows(kDenseFirstTokens) * kSlots * (16 * 64 * 2 + 16 * 4));
}

TEST(Family, IsHopperWhereItsKernelsServe) {
  EXPECT_EQ(kernel_family(90, 64), KernelFamily::kHopper);
  EXPECT_EQ(kernel_family(90, 128), KernelFamily::kHopper);
  EXPECT_EQ(kernel_family(90, 96), KernelFamily::kPortable);
  EXPECT_EQ(kernel_family(80, 64), KernelFamily::kPortable);
  EXPECT_EQ(kernel_family(100, 64), KernelFamily::kPortable);
}

TEST(Causal, WorkspaceIsLinearInTheSequence) {
  const auto bytes = [](int sequence) {
    return static_cast<double>(causal_backward_workspace_bytes({1, sequence, 2}));
  };
  // The size is not proportional, because rounds and bands begin between these lengths.
  for (const int sequence : {8192, 16384, 32768, 65536, 131072})
    EXPECT_LT(bytes(sequence), sequence * 4096.0) << sequence;
  EXPECT_LE(bytes(131072) / bytes(65536), 2.02);
}

// Every token that sees a key of a tile is in exactly one of the tile's units.
TEST(KeyUnits, CoverEveryToken) {
  for (const KeyRange range : {KeyRange::kWindow, KeyRange::kCompressed}) {
    for (const int sequence : {1, 31, 32, 640, 1000, 5000, 34000, 131072}) {
      const portable::KeyUnits units(range, sequence);
      int total = 0;
      for (int tile = 0; tile < units.tiles; ++tile) {
        EXPECT_EQ(units.units_before(tile), total);
        EXPECT_LT(units.first(tile), units.end(tile));
        EXPECT_LE(units.end(tile), sequence);
        const int parts = units.parts_of(tile);
        EXPECT_GE(parts, 1);
        EXPECT_LE(parts, units.parts);
        EXPECT_LE(parts, portable::KeyUnits::kMostParts);
        EXPECT_GE(units.first(tile) + parts * units.part_tokens, units.end(tile));
        EXPECT_LT(units.first(tile) + (parts - 1) * units.part_tokens, units.end(tile));
        total += parts;
      }
      EXPECT_EQ(units.units_before(units.tiles), total);
      EXPECT_EQ(portable::key_gradient_units({3, sequence, 2}, range), 6 * total);
    }
  }
}

TEST(PortableWorkspace, GrowsWithTheSequenceAndNotFaster) {
  const FusedTuning portable = {.family = KernelFamily::kPortable};
  for (const int dim : {64, 128}) {
    const auto forward = [&](int sequence) {
      return static_cast<double>(fused_forward_workspace_bytes({1, sequence, 2, 6, dim}, portable));
    };
    const auto backward = [&](int sequence) {
      return static_cast<double>(
          fused_backward_workspace_bytes({1, sequence, 2, 6, dim}, portable));
    };
    EXPECT_EQ(forward(choice::kPortableWholeUpTo), 0);
    EXPECT_GT(forward(choice::kPortableWholeUpTo + 1), 0);
    for (const int sequence : {32768, 65536}) {
      EXPECT_LE(forward(2 * sequence) / forward(sequence), 2.02);
      EXPECT_LE(backward(2 * sequence) / backward(sequence), 2.02);
    }
  }
}

TEST(PortableLaunches, RefuseMoreQueryRowsThan32BitsCount) {
  SelectedForwardParams params = {};
  params.shape = {128, 1 << 20, 2, 8};
  EXPECT_EQ(portable::launch_list_attend(params, nullptr), cudaErrorInvalidValue);
}

} // namespace
} // namespace nsa::kernels
