// Compares the choice of a token's blocks (selection/pick.cuh) with sorting, without a GPU.
#include "tests/unit/kernels/one_warp.h"

#include "nsa_model/kernels/selection/filter.cuh"
#include "nsa_model/kernels/selection/plan.h"
#include "nsa_model/kernels/selection/selection.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace nsa::kernels {
namespace {

// Eq. 11 and 12 by sorting: blocks 0, own - 1, own and the 13 best of the others. Of equal blocks
// the lower one is taken.
std::vector<int32_t> sorted_choice(const std::vector<float>& scores, int own) {
  std::vector<int32_t> others;
  for (int block = 1; block <= own - 2; ++block)
    others.push_back(block);
  std::stable_sort(others.begin(), others.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  others.resize(kPickedBlocks);
  others.insert(others.end(), {0, own - 1, own});
  std::sort(others.begin(), others.end());
  return others;
}

// Scores in records of kRecord floats, as the kernels write them. If a record has room, a part of
// the unit's first score must still be added.
template <int kRecord> std::vector<float> records_of(const std::vector<float>& scores, int own) {
  const auto units = static_cast<std::size_t>(unit_count(own));
  std::vector<float> records(units * kRecord + 4, -1.0f); // aligned below
  for (std::size_t unit = 0; unit < units; ++unit) {
    for (std::size_t i = 0; i < kUnitBlocks; ++i) {
      const std::size_t block = unit * kUnitBlocks + i;
      float& place = records[unit * kRecord + i];
      place = block + 2 <= static_cast<std::size_t>(own) ? scores[block] : __int_as_float(kNoKey);
      if (kRecord > kUnitBlocks && i == 0) {
        records[unit * kRecord + kUnitBlocks] = place / 2;
        place /= 2;
      }
    }
  }
  return records;
}

// The largest scores of a token that the 32 lanes of the selection keep, and of these the four of a
// lane. A warp scores every fourth unit, and its lane the two blocks of a unit that are eight
// apart.
int most_of_lane(const float* records, int own, int lane, int warp) {
  int most = kNoKey;
  for (int unit = warp; unit < unit_count(own); unit += 4) {
    for (int i = lane; i < kUnitBlocks; i += kPickLanes) {
      const int block = unit * kUnitBlocks + i;
      if (block >= 1 && block <= own - 2)
        most = max(most, __float_as_int(records[unit * (kUnitBlocks + 4) + i]));
    }
  }
  return most;
}
// Four tokens of one warp. The last token writes nothing. kFilters: by the largest scores of lanes,
// and by sorting where that does not choose.
int filtered = 0; // choices without sorting
template <int kRecord, bool kFilters>
void expect_choice(const std::vector<std::vector<float>>& scores, int own,
                   const std::string& what) {
  std::vector<std::vector<int4>> places(kPickTokens); // aligned to 16 bytes
  for (std::size_t token = 0; token < kPickTokens; ++token) {
    const std::vector<float> records = records_of<kRecord>(scores[token % scores.size()], own);
    places[token].resize(records.size() / 4);
    std::memcpy(places[token].data(), records.data(), places[token].size() * sizeof(int4));
  }
  std::vector<int32_t> slots(kPickTokens * kSlots, -7);
  int32_t kept[kPickTokens][kMostKept] = {};
  ASSERT_TRUE(Warp::run([&] {
    const auto token = static_cast<std::size_t>(threadIdx.x / kPickLanes);
    const auto* records = reinterpret_cast<const float*>(places[token].data());
    int32_t* into = token + 1 < kPickTokens ? &slots[token * kSlots] : nullptr;
    if constexpr (kFilters) {
      int maxima[kLaneKept];
      for (int warp = 0; warp < kLaneKept; ++warp)
        maxima[warp] = most_of_lane(records, own, static_cast<int>(threadIdx.x % kPickLanes), warp);
      if (pick_kept_blocks<kRecord>(records, maxima, kept[token], own, into)) {
        if (threadIdx.x == 0u) ++filtered;
        return;
      }
    }
    pick_blocks<kRecord>(records, own, into);
  })) << what
      << ": lanes part";
  for (std::size_t token = 0; token + 1 < kPickTokens; ++token) {
    const std::vector<int32_t> chosen(slots.begin() + static_cast<std::ptrdiff_t>(token * kSlots),
                                      slots.begin() +
                                          static_cast<std::ptrdiff_t>((token + 1) * kSlots));
    EXPECT_EQ(chosen, sorted_choice(scores[token % scores.size()], own))
        << what << ", own block " << own << ", token " << token;
  }
  EXPECT_EQ(slots.back(), -7) << what << ": a token that does not exist";
}
void expect_choice(const std::vector<std::vector<float>>& scores, int own,
                   const std::string& what) {
  expect_choice<kUnitBlocks, false>(scores, own, what);
  expect_choice<kUnitBlocks + 4, false>(scores, own, what);
  expect_choice<kUnitBlocks + 4, true>(scores, own, what);
}
void expect_choice(const std::vector<float>& scores, int own, const std::string& what) {
  expect_choice(std::vector<std::vector<float>>{scores}, own, what);
}

// The shortest and longest rows, and rows at whose ends units and the lanes' turns end.
const std::vector<int> kOwnBlocks = {16, 17, 18, 31, 33, 34, 35, 65, 66, 129, 130, 500, 1023, 2047};

TEST(Pick, TakesTheBestOfRandomScores) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  for (const int own : kOwnBlocks) {
    for (int round = 0; round < (own < 200 ? 20 : 4); ++round) {
      std::vector<std::vector<float>> scores(kPickTokens);
      for (std::vector<float>& of_token : scores) {
        of_token.resize(static_cast<std::size_t>(own));
        for (float& score : of_token)
          score = uniform(random);
      }
      // One token has equal scores at the cut, and the others do not.
      scores[1].assign(scores[1].size(), 0.5f);
      expect_choice(scores, own, "random");
    }
  }
}

// The bound of random scores leaves few blocks.
TEST(Pick, SortsNoScoresInRandomOrder) {
  std::mt19937 random(6);
  for (const int own : {66, 130, 500, 2047, 4095}) {
    std::vector<std::vector<float>> scores(kPickTokens);
    for (std::vector<float>& of_token : scores) {
      for (int i = 0; i < own; ++i)
        of_token.push_back(static_cast<float>(i + 1));
      std::shuffle(of_token.begin(), of_token.end(), random);
    }
    const int before = filtered;
    expect_choice(scores, own, "shuffled");
    EXPECT_EQ(filtered, before + 1) << own;
  }
}

TEST(Pick, TakesTheLowestOfEqualScores) {
  std::mt19937 random(4);
  for (const int own : kOwnBlocks) {
    const auto count = static_cast<std::size_t>(own);
    for (const float value : {0.0f, 1e-30f, 0.25f, 3e38f})
      expect_choice(std::vector<float>(count, value), own, "all equal");
    for (const unsigned values : {2u, 3u, 20u}) { // many equal scores at the cut
      std::vector<float> scores(count);
      for (float& score : scores)
        score = static_cast<float>(random() % values);
      expect_choice(scores, own, "few values");
    }
  }
}

TEST(Pick, TakesFewLargeOnesAndThenTheLowest) {
  std::mt19937 random(5);
  for (const int own : kOwnBlocks) {
    for (const int large : {1, 5, 12, 13, 14, 40}) {
      std::vector<float> scores(static_cast<std::size_t>(own), 0.0f);
      for (int i = 0; i < large; ++i)
        scores[random() % scores.size()] = 1.0f + static_cast<float>(i);
      expect_choice(scores, own, "one-hot");
    }
  }
}

// All of the best blocks belong to one lane and one unit, or neighbours differ only in the last
// bit.
TEST(Pick, TakesTheBestOfOneLaneAndOfNearlyEqualOnes) {
  for (const int own : kOwnBlocks) {
    std::vector<float> one_lane(static_cast<std::size_t>(own), 0.1f);
    for (std::size_t block = 0; block < one_lane.size(); ++block) {
      if (block / kUnitBlocks % kPickLanes == 1)
        one_lane[block] = 1.0f + static_cast<float>(block * 7 % 32);
    }
    expect_choice(one_lane, own, "one lane");
    std::vector<float> rising(static_cast<std::size_t>(own)), falling = rising;
    for (std::size_t block = 0; block < rising.size(); ++block) {
      const auto step = static_cast<uint32_t>(block);
      rising[block] = __builtin_bit_cast(float, 0x3f000000u + step);
      falling[block] = __builtin_bit_cast(float, 0x3f800000u - step);
    }
    expect_choice(rising, own, "rising by a bit");
    expect_choice(falling, own, "falling by a bit");
  }
}

TEST(ScorePlan, KeepsScoresInGlobalMemoryAbove32768Tokens) {
  for (const int dim : {64, 128}) {
    EXPECT_EQ(selection_score_bytes({1, 32768, 2, 6, dim}), 0u);
    // A row of scores for each of a tile's 16 tokens, and a tile for each KV head at least.
    const std::size_t tile = std::size_t{16} * score_stride(block_count(32769)) * sizeof(float);
    EXPECT_GE(selection_score_bytes({1, 32769, 2, 6, dim}), 2 * tile);
    EXPECT_EQ(4 * 132 * tile, 24465408u); // four CTAs on each multiprocessor of an H200
  }
}

TEST(ScorePlan, ScoresEveryUnitOnceAndKeepsWithinItsRecords) {
  for (int own = kSlots; own < 2048; ++own) {
    const ScorePlan plan(own);
    EXPECT_GE(plan.units * kUnitBlocks, own - 1); // blocks 0 .. own - 2
    EXPECT_LT((plan.units - 1) * kUnitBlocks, own - 1);
    EXPECT_EQ(plan.whole % 4, 0);
    EXPECT_GE(plan.whole + plan.rest, plan.units);
    EXPECT_LE(plan.whole + plan.rest, plan.units + (plan.rest == 0 ? 3 : 0));
    // The scores of the rest overwrite shares. None of these lies after the share of the first
    // unit.
    EXPECT_LE(plan.rest, 4);
    EXPECT_LE(kScoreRecord * plan.records(), score_stride(own + 1));
    EXPECT_EQ(score_stride(own + 1) % 8, 4);
    EXPECT_EQ(plan.products(), 4 * plan.steps() + plan.rest);
  }
}

TEST(TileOrder, TakesEveryTileOnce) {
  for (const int places : {132, 396, 528, 7}) {
    for (const int kv_heads : {1, 2, 3, 8, 32, 100, 300, 700, 5000}) {
      for (const int tiles : {1, 20, 64, 65, 70, 128, 512, 1000, 2048}) {
        const int scored = std::max(0, tiles - 64);
        for (const auto of : {tile_order, resident_tile_order}) {
          const TileOrder order = of(tiles, scored, kv_heads, places);
          if (of == resident_tile_order) {
            EXPECT_EQ(order.ctas_of_kv_head(), order.ctas);
          }
          std::vector<int> taken(static_cast<std::size_t>(tiles));
          ASSERT_GE(order.ctas_of_kv_head(), 1);
          for (int cta = 0; cta < order.ctas_of_kv_head(); ++cta) {
            for (int round = 0; order.tile_of(cta, round) >= 0; ++round) {
              ASSERT_LT(order.tile_of(cta, round), scored);
              ++taken[static_cast<std::size_t>(order.tile_of(cta, round))];
            }
            for (int round = 0; order.unscored_tile_of(cta, round) >= 0; ++round)
              ++taken[static_cast<std::size_t>(order.unscored_tile_of(cta, round))];
          }
          EXPECT_EQ(std::count(taken.begin(), taken.end(), 1), tiles)
              << places << " places, " << kv_heads << " KV heads, " << tiles << " tiles";
        }
      }
    }
  }
}

} // namespace
} // namespace nsa::kernels
