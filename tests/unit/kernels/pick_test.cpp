// The choice of a token's blocks (selection/pick.cuh) against a sort, without a GPU: the header is
// compiled for the host with the few functions of a warp that it uses, and its 32 lanes are
// contexts that take turns from one of these functions to the next.
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <ucontext.h>
#include <vector>

namespace {

constexpr int kLanes = 32;

// One warp at a time. A lane that comes to a function of the warp leaves its value and gives way;
// when its turn comes again every lane has been there. Two rows of values in turn, since the first
// lane goes on to the next function while others still read.
class Warp {
public:
  // Runs body() once as each lane. False when the lanes did not meet at the same functions.
  static bool run(const std::function<void()>& body) {
    Warp warp(body);
    current = &warp;
    for (int lane = 0; lane < kLanes; ++lane) {
      getcontext(&warp.lanes_[lane]);
      warp.lanes_[lane].uc_stack.ss_sp = warp.stacks_[lane].data();
      warp.lanes_[lane].uc_stack.ss_size = warp.stacks_[lane].size();
      warp.lanes_[lane].uc_link = nullptr;
      makecontext(&warp.lanes_[lane], &Warp::enter, 0);
    }
    while (warp.finished_ < kLanes) {
      for (warp.lane_ = 0; warp.lane_ < kLanes; ++warp.lane_)
        swapcontext(&warp.caller_, &warp.lanes_[warp.lane_]);
      for (int lane = 1; lane < kLanes; ++lane)
        warp.together_ = warp.together_ && warp.at_[lane] == warp.at_[0];
      if (!warp.together_) break;
    }
    current = nullptr;
    return warp.together_;
  }

  static Warp* current;
  int lane() const { return lane_; }
  // Leaves a value; returns all lanes' values. `function`: which of the warp's this is.
  const uint64_t* meet(int function, uint64_t value) {
    const int mine = lane_;
    const int row = turn_[mine]++ % 2;
    values_[row][mine] = value;
    at_[mine] = function;
    swapcontext(&lanes_[mine], &caller_);
    return values_[row];
  }

private:
  explicit Warp(const std::function<void()>& body)
      : body_(body), stacks_(kLanes, std::vector<char>(64 * 1024)) {}
  static void enter() {
    Warp& warp = *current;
    warp.body_();
    const int mine = warp.lane_;
    warp.at_[mine] = -1;
    ++warp.finished_;
    swapcontext(&warp.lanes_[mine], &warp.caller_);
  }

  const std::function<void()>& body_;
  std::vector<std::vector<char>> stacks_;
  ucontext_t caller_ = {};
  ucontext_t lanes_[kLanes] = {};
  uint64_t values_[2][kLanes] = {};
  int turn_[kLanes] = {};
  int at_[kLanes] = {};
  int lane_ = 0;
  int finished_ = 0;
  bool together_ = true;
};
Warp* Warp::current = nullptr;

// What CUDA C++ gives device code.
struct ThreadIndex {
  struct Lane {
    operator unsigned() const { return static_cast<unsigned>(Warp::current->lane()); }
  } x;
};
constexpr ThreadIndex threadIdx;

template <typename T> T __shfl_sync(unsigned, T value, int lane) {
  return static_cast<T>(Warp::current->meet(1, value)[lane % kLanes]);
}
unsigned __ballot_sync(unsigned, bool predicate) {
  const uint64_t* all = Warp::current->meet(2, predicate ? 1 : 0);
  unsigned bits = 0;
  for (int lane = 0; lane < kLanes; ++lane)
    bits |= static_cast<unsigned>(all[lane]) << lane;
  return bits;
}
unsigned __reduce_add_sync(unsigned, unsigned value) {
  const uint64_t* all = Warp::current->meet(3, value);
  unsigned sum = 0;
  for (int lane = 0; lane < kLanes; ++lane)
    sum += static_cast<unsigned>(all[lane]);
  return sum;
}
void __syncwarp() {
  Warp::current->meet(4, 0);
}
int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}
int __ffs(int bits) {
  return __builtin_ffs(bits);
}
unsigned __float_as_uint(float value) {
  return __builtin_bit_cast(unsigned, value);
}
unsigned max(unsigned a, unsigned b) {
  return a > b ? a : b;
}

} // namespace

#include "nsa_model/kernels/selection/pick.cuh"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace nsa::kernels {
namespace {

// Eq. 11 and 12 by a sort: blocks 0, own - 1, own and the 13 best of the others, ties to the lower.
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

void expect_choice(const std::vector<float>& scores, int own, const std::string& what) {
  std::vector<int32_t> slots(kSlots, -7);
  std::vector<float> places = scores; // read and overwritten, as on the GPU
  places.resize(static_cast<std::size_t>(std::max(own, 32)));
  ASSERT_TRUE(Warp::run([&] {
    select_blocks(
        places.data(), [&](int block) { return places[static_cast<std::size_t>(block)]; }, own,
        slots.data());
  })) << what
      << ": lanes part";
  EXPECT_EQ(slots, sorted_choice(scores, own)) << what << ", own block " << own;
}

// The shortest and longest rows, and where the lanes' turns end.
const std::vector<int> kOwnBlocks = {16, 17, 31, 32, 33, 34, 35, 63, 65, 66, 130, 500, 1023, 2047};

TEST(Pick, TakesTheBestOfRandomScores) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  for (const int own : kOwnBlocks) {
    for (int round = 0; round < (own < 200 ? 20 : 4); ++round) {
      std::vector<float> scores(static_cast<std::size_t>(own));
      for (float& score : scores)
        score = uniform(random);
      expect_choice(scores, own, "random");
    }
  }
}

TEST(Pick, TakesTheLowestOfEqualScores) {
  std::mt19937 random(4);
  for (const int own : kOwnBlocks) {
    const auto count = static_cast<std::size_t>(own);
    for (const float value : {0.0f, 1e-30f, 0.25f, 3e38f})
      expect_choice(std::vector<float>(count, value), own, "all equal");
    for (const unsigned values : {2u, 3u, 20u}) { // many at the cut
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

// All of the best with one lane, and neighbours that differ in their last bit.
TEST(Pick, TakesTheBestOfOneLaneAndOfNearlyEqualOnes) {
  for (const int own : kOwnBlocks) {
    std::vector<float> one_lane(static_cast<std::size_t>(own), 0.1f);
    for (std::size_t block = 5; block < one_lane.size(); block += 32)
      one_lane[block] = 1.0f + static_cast<float>(block);
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

} // namespace
} // namespace nsa::kernels
