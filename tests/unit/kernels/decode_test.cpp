// The decoding kernels' device code without a GPU: attention of a warp, block scores, the choice of
// blocks, and the division of a step.
#include "tests/unit/kernels/decode_on_host.h"

namespace nsa::kernels::decode {
namespace {

// The results that the lanes have after a warp's attention.
struct Seen {
  double out[16][kHeadDim] = {};
  double sum[16] = {};
  int reference[16] = {};
  std::vector<std::array<float, 8>> block_sums[16]; // for each step
  std::vector<float> last[16];
  std::vector<int> step_reference[16];
};

// Keys come one after another in steps of 32; the last step may be shorter. Stored key i is in row
// (i * 7 + 3) % rows of the cache, so no row is read by chance.
template <int kHalves>
Seen attend(const Rows& q, const Rows& k, const Rows& v, int heads, int keys) {
  Seen seen;
  const int steps = steps_of(keys);
  for (int row = 0; row < 16; ++row) {
    seen.block_sums[row].resize(static_cast<std::size_t>(steps));
    seen.last[row].resize(static_cast<std::size_t>(steps));
    seen.step_reference[row].resize(static_cast<std::size_t>(steps));
  }
  EXPECT_TRUE(Warp::run([&] {
    WarpAttention<kHalves> attention(q.data(), heads, 0.125f);
    float p[kHalves][kLaneKeys];
    const int lane = static_cast<int>(threadIdx.x);
    for (int step = 0; step < steps; ++step) {
      const auto place = static_cast<std::size_t>(step);
      const int first = step * Tile::kStepKeys;
      const int count = std::min(keys - first, Tile::kStepKeys);
      StepKeys loaded;
      loaded.load(
          k.data(), v.data(),
          [&](int key) {
            if (key < 0 || key >= count) std::abort(); // a key that is not there
            return (first + key) * kHeadDim;
          },
          count);
      attention.attend(loaded, count, p);
      for (int half = 0; half < kHalves; ++half) {
        const BlockSums sums = block_sums(p[half]);
        const int row = lane / 4 + 8 * half;
        seen.block_sums[row][place][static_cast<std::size_t>(lane % 4 * 2)] = sums.first;
        seen.block_sums[row][place][static_cast<std::size_t>(lane % 4 * 2 + 1)] = sums.second;
        if (lane % 4 == 3) seen.last[row][place] = p[half][kLaneKeys - 1];
        seen.step_reference[row][place] = attention.reference[half];
      }
    }
    for (int half = 0; half < kHalves; ++half) {
      const int row = lane / 4 + 8 * half;
      const float sum = quad_sum(attention.sum[half]);
      seen.sum[row] = static_cast<double>(sum);
      seen.reference[row] = attention.reference[half];
      for (int i = 0; i < 16; ++i)
        seen.out[row][out_dimension(lane % 4, i)] = static_cast<double>(attention.out(half, i));
    }
  }));
  return seen;
}

// Computes a head's probabilities and its weighted sum of the values.
Row probabilities(const Rows& q, const Rows& k, int head, int keys) {
  Row p(static_cast<std::size_t>(keys));
  double largest = -INFINITY;
  for (int key = 0; key < keys; ++key) {
    double score = 0;
    for (int d = 0; d < kHeadDim; ++d)
      score += q.at(head, d) * k.at(key, d);
    p[static_cast<std::size_t>(key)] = score / 8;
    largest = std::max(largest, score / 8);
  }
  double sum = 0;
  for (double& value : p)
    sum += value = std::exp(value - largest);
  for (double& value : p)
    value /= sum;
  return p;
}

template <int kHalves> void expect_attention(int heads, int keys, double deviation) {
  const Rows q(heads, 1, deviation);
  const Rows k(keys, 2, deviation);
  const Rows v(keys, 3, 1);
  const Seen seen = attend<kHalves>(q, k, v, heads, keys);
  for (int head = 0; head < heads; ++head) {
    const Row p = probabilities(q, k, head, keys);
    for (int d = 0; d < kHeadDim; ++d) {
      double wanted = 0;
      for (int key = 0; key < keys; ++key)
        wanted += p[static_cast<std::size_t>(key)] * v.at(key, d);
      EXPECT_NEAR(seen.out[head][d] / seen.sum[head], wanted, 1e-4)
          << "head " << head << ", dimension " << d << ", " << keys << " keys";
    }
    // Eq. 10 from the sums of the steps. The last block may be incomplete.
    const reference::Sizes sizes;
    for (int block = 0; block < (keys + kRowsOfBlock - 1) / kRowsOfBlock; ++block) {
      double wanted = 0;
      for (int key = 0; key < keys; ++key)
        wanted += p[static_cast<std::size_t>(key)] *
                  static_cast<double>(reference::shared_strides(key, block, sizes));
      const auto step = static_cast<std::size_t>(block / kStepBlocks);
      const auto scaled = [&](float value, std::size_t of_step) {
        return std::ldexp(static_cast<double>(value),
                          seen.step_reference[head][of_step] - seen.reference[head]) /
               seen.sum[head];
      };
      double sum = scaled(seen.block_sums[head][step][static_cast<std::size_t>(block) % 8], step);
      if (block % kStepBlocks == 0 && step > 0) sum += scaled(seen.last[head][step - 1], step - 1);
      EXPECT_NEAR(sum, wanted, 1e-5 + 1e-4 * wanted) << "head " << head << ", block " << block;
    }
  }
}

TEST(DecodeWarp, AttendsAsPlainLoops) {
  for (const int keys : {1, 2, 7, 8, 9, 31, 32, 33, 64, 95, 200})
    expect_attention<1>(6, keys, 1);
  expect_attention<1>(6, 128, 6); // sharp scores: references change by tens
  expect_attention<1>(1, 40, 1);
  expect_attention<1>(8, 40, 1);
  expect_attention<2>(9, 40, 1);
  expect_attention<2>(16, 70, 2);
}

// With scores of thousands, only the order of the keys matters: the largest takes all the
// probability.
TEST(DecodeWarp, TakesScoresThatAreFarApart) {
  Rows q(1, 1, 0);
  Rows k(40, 2, 0);
  const Rows v(40, 3, 1);
  q.set(0, 1000);
  for (int key = 0; key < 40; ++key)
    k.set(key * kHeadDim, static_cast<float>(key < 20 ? -key : key));
  const Seen seen = attend<1>(q, k, v, 1, 40);
  for (int d = 0; d < kHeadDim; ++d)
    EXPECT_NEAR(seen.out[0][d] / seen.sum[0], v.at(39, d), 1e-4);
}

// Equal keys get equal bits, whatever came before them. Otherwise ties could not be found.
TEST(DecodeWarp, EqualKeysHaveEqualBits) {
  constexpr int kKeys = 192;
  const Rows q(6, 1, 2);
  Rows k(kKeys, 2, 2);
  const Rows v(kKeys, 3, 1);
  for (int key = 128; key < kKeys; ++key) // the same keys again, after others
    for (int d = 0; d < kHeadDim; ++d)
      k.set(key * kHeadDim + d, static_cast<float>(k.at(key - 128, d)));
  const Seen seen = attend<1>(q, k, v, 6, kKeys);
  int moved = 0;
  for (int head = 0; head < 6; ++head)
    for (std::size_t step = 0; step < 2; ++step) {
      const int apart = seen.step_reference[head][step] - seen.step_reference[head][step + 4];
      moved += apart != 0;
      for (std::size_t block = step == 0 ? 1 : 0; block < 8; ++block)
        EXPECT_EQ(std::ldexp(seen.block_sums[head][step][block], apart),
                  seen.block_sums[head][step + 4][block])
            << head << ' ' << step << ' ' << block;
    }
  EXPECT_GT(moved, 0) << "the test is of references that differ";
}

TEST(DecodeScores, SplitIsExact) {
  for (const float x : {0.0f, 0.5f, -0.5f, 1.5f, 2.5f, 3.75f, -1000.3f, 130.49f, 1e5f, -1e5f}) {
    const Split split = split_score(x);
    EXPECT_EQ(static_cast<float>(split.whole) + split.rest, x);
    EXPECT_LE(std::abs(split.rest), 0.5f);
  }
  EXPECT_EQ(split_score(1e30f).whole, 1 << 20);
  EXPECT_EQ(split_score(-INFINITY).whole, -(1 << 20));
  EXPECT_EQ(power_of_two(0), 1.0f);
  EXPECT_EQ(power_of_two(-126), std::ldexp(1.0f, -126));
  EXPECT_EQ(power_of_two(-127), 0.0f);
  EXPECT_EQ(power_of_two(kNoReference), 0.0f);
}

// Eq. 11 and 12 by sorting: blocks 0, own - 1, own and the 13 best of the others. Of equal blocks
// the lower one is taken.
std::vector<int> sorted_choice(const std::vector<float>& scores, int own) {
  std::vector<int> others;
  for (int block = 1; block <= own - 2; ++block)
    others.push_back(block);
  std::stable_sort(others.begin(), others.end(), [&](int a, int b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  others.resize(kPickedBlocks);
  std::sort(others.begin(), others.end());
  return others;
}

// Chooses as four warps do. `keys` has whole groups.
std::vector<int> choose(const std::vector<float>& scores, int own) {
  constexpr int kWarps = 4;
  const int count = round_up(static_cast<int>(scores.size()), kStepBlocks);
  std::vector<int4> words(static_cast<std::size_t>(key_places(count / kStepBlocks) / 4),
                          int4{kNoKey, kNoKey, kNoKey, kNoKey});
  auto* const keys = reinterpret_cast<int*>(words.data());
  for (int block = 1; block <= own - 2; ++block)
    keys[block] = key_of(scores[static_cast<std::size_t>(block)]);
  std::vector<int> taken(kPickedBlocks, -1);
  Groups groups;
  std::vector<HostCluster::Bytes> no_shared(1);
  HostCluster cta(kWarps, no_shared);
  EXPECT_TRUE(cta.run([&](int) {
    find_best<kWarps>(keys, count, groups, [&](int rank, int place) {
      int& slot = taken[static_cast<std::size_t>(rank)];
      EXPECT_EQ(slot, -1) << "one block for each rank";
      slot = place;
    });
  }));
  std::vector<int> slots(kPickedBlocks, -1);
  for (int i = 0; i < kPickedBlocks; ++i)
    slots[static_cast<std::size_t>(slot_of(taken.data(), i) - 1)] =
        taken[static_cast<std::size_t>(i)];
  return slots;
}

TEST(DecodeChoice, TakesTheBestAndOfEqualOnesTheLowest) {
  std::mt19937 random(5);
  for (const int own : {16, 17, 31, 63, 64, 127, 128, 130, 500, 514, 1030, 2047, 8191}) {
    const auto count = static_cast<std::size_t>(own + 1);
    for (const unsigned values : {1u, 2u, 20u, 1u << 30}) {
      std::vector<float> scores(count);
      for (float& score : scores)
        score = static_cast<float>(random() % values);
      EXPECT_EQ(choose(scores, own), sorted_choice(scores, own)) << own << ", " << values;
    }
    std::vector<float> few(count, 0.0f); // the best blocks are neighbours, at the end
    for (std::size_t block = count - 15; block < count; ++block)
      few[block] = 1.0f;
    EXPECT_EQ(choose(few, own), sorted_choice(few, own)) << own << ", neighbours";
  }
}

// A diverged model has such scores: a GPU's NaN has all bits of the fraction. Every rank is taken,
// so no slot keeps what was there before.
TEST(DecodeChoice, TakesBlocksEvenIfScoresAreNoNumbers) {
  for (const int own : {16, 60, 500, 8191})
    for (const float value : {std::bit_cast<float>(0x7FFFFFFFu), std::bit_cast<float>(~0u)}) {
      const std::vector<float> scores(static_cast<std::size_t>(own + 1), value);
      EXPECT_EQ(choose(scores, own), sorted_choice(scores, own)) << own;
    }
}

TEST(DecodePlan, CountsAsTheReferenceDoes) {
  const reference::Sizes sizes;
  for (int length = 0; length < 3000; ++length) {
    EXPECT_EQ(compressed_keys(length), reference::compressed_count(length, sizes));
    EXPECT_EQ(selected_count(length),
              std::clamp<int64_t>(reference::block_count(length, sizes), 1, kSlots));
    EXPECT_EQ(chooses_blocks(length), length > kSlots * kBlock);
    EXPECT_EQ(window_keys(length), std::min(length, kWindow));
  }
}

TEST(DecodePlan, PartsCoverEverythingOnce) {
  for (const int count : {0, 1, 3, 8, 31, 256})
    for (const int log_parts : {0, 1, 2, 4}) {
      const int parts = 1 << log_parts;
      int next = 0;
      for (int part = 0; part < parts; ++part) {
        const Range range = even_part(count, log_parts, part);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.end - range.begin, count / parts + 1);
        for (int i = range.begin; i < range.end; ++i)
          EXPECT_EQ(part_of(count, log_parts, i), part);
        next = range.end;
      }
      EXPECT_EQ(next, count);
    }
}

// Every step of every part belongs to exactly one warp, for any cluster size and length.
TEST(DecodePlan, EveryStepIsTakenOnce) {
  for (const int log_ctas : {0, 1, 2, 3, 4})
    for (const int length : {1, 100, 600, 1024, 1025, 4096, 131072}) {
      std::array<std::vector<int>, kParts> taken;
      for (int rank = 0; rank < 1 << log_ctas; ++rank)
        for (int warp = 0; warp < Tile::kWarps<1>; ++warp) {
          Cta cta{};
          cta.log_ctas = log_ctas;
          cta.rank = rank;
          cta.length = length;
          cta.own = own_block(length);
          cta.compressed = even_part(steps_of(compressed_keys(length)), log_ctas, rank);
          for (int part = 0; part < kParts; ++part) {
            const Steps steps = steps_of_part<1>(part, cta, warp);
            for (int i = steps.begin; i < steps.end; i += steps.stride)
              taken[static_cast<std::size_t>(part)].push_back(i);
          }
        }
      const int chosen = chooses_blocks(length) ? kPickedBlocks : selected_count(length);
      const int forced = chooses_blocks(length) ? kForcedBlocks : 0;
      const int counts[] = {steps_of(compressed_keys(length)), steps_of(window_keys(length)),
                            kBlockSteps * forced, kBlockSteps * chosen};
      for (int part = 0; part < kParts; ++part) {
        std::vector<int>& steps = taken[static_cast<std::size_t>(part)];
        std::sort(steps.begin(), steps.end());
        std::vector<int> wanted(static_cast<std::size_t>(counts[part]));
        std::iota(wanted.begin(), wanted.end(), 0);
        EXPECT_EQ(steps, wanted) << (1 << log_ctas) << " CTAs, " << length << " tokens, part "
                                 << part;
      }
    }
}

// Steps of the forced and of the chosen blocks in the kernel for one CTA.
TEST(DecodePlan, AloneEveryStepIsTakenOnce) {
  for (const int length : {0, 1000, 1024, 1025, 131072})
    for (const int part : {kForcedPart, kChosenPart}) {
      Cta cta{};
      cta.length = length;
      cta.own = own_block(length);
      std::vector<int> taken;
      for (int warp = 0; warp < Tile::kWarps<1>; ++warp) {
        const Steps steps = steps_alone(part, cta, warp);
        for (int i = steps.begin; i < steps.end; i += steps.stride)
          taken.push_back(i);
      }
      std::sort(taken.begin(), taken.end());
      const bool chooses = chooses_blocks(length);
      const int blocks = part == kForcedPart ? (chooses ? kForcedBlocks : 0)
                         : chooses           ? kPickedBlocks
                                             : selected_count(length);
      std::vector<int> wanted(static_cast<std::size_t>(kBlockSteps * blocks));
      std::iota(wanted.begin(), wanted.end(), 0);
      EXPECT_EQ(taken, wanted) << length << ", part " << part;
    }
}

TEST(DecodePlan, FillsTheGpu) {
  const Device hopper{132, 16, 113 << 10, 227 << 10};
  const auto plan_of = [&](int kv_heads, int tokens) {
    return make_plan(kv_heads, 6, tokens, sizeof(Shared<1>), hopper);
  };
  EXPECT_EQ(plan_of(2, 4096).ctas(), 8); // one sequence with two groups
  EXPECT_EQ(plan_of(2, 131072).ctas(), 16);
  EXPECT_EQ(plan_of(16, 4096).ctas(), 4);
  EXPECT_EQ(plan_of(64, 4096).ctas(), 2);
  EXPECT_EQ(plan_of(99, 4096).ctas(), 2);
  EXPECT_EQ(plan_of(100, 4096).ctas(), 1);
  EXPECT_EQ(plan_of(128, 4096).ctas(), 1);
  EXPECT_EQ(plan_of(4096, 4096).ctas(), 1);
  EXPECT_EQ(make_plan(2, 6, 4096, 0, {108, 1, 80 << 10, 160 << 10}).ctas(), 1) << "before Hopper";
  for (const int kv_heads : {1, 2, 16, 128, 4096})
    for (const int tokens : {1, 31, 32, 1000, 4096, 131072, kMostDecodeTokens}) {
      const Plan plan = plan_of(kv_heads, tokens);
      EXPECT_LE(shared_bytes<1>(plan, 6, tokens),
                plan.alone ? hopper.alone_bytes : hopper.shared_bytes)
          << kv_heads << ' ' << tokens;
      EXPECT_EQ(plan.alone, kv_heads == 128);
      EXPECT_EQ(workspace_bytes(plan, kv_heads, 6, tokens) > 0, plan.sums_in_workspace);
    }
  EXPECT_FALSE(make_plan(128, kHalfHeads + 1, 4096, sizeof(Shared<2>), hopper).alone);
  EXPECT_FALSE(plan_of(128, 131072).sums_in_workspace);
  EXPECT_TRUE(plan_of(4096, kMostDecodeTokens).sums_in_workspace);
}

TEST(DecodePlan, WindowIsARing) {
  for (const int rows : {512, 700}) // for positions 1,000 .. 1,511
    for (int i = 0; i < 512; ++i)
      EXPECT_EQ(ring_row(1000 % rows, i, rows), (1000 + i) % rows);
}

} // namespace
} // namespace nsa::kernels::decode
