// The merge of packed partial results, with every thread on the CPU. The lanes of a warp are 32
// threads that meet at each exchange.
#include "nsa_model/kernels/block_lists/rounds.cuh"
#include "nsa_model/kernels/combine/packed_merge.cuh"

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <sched.h>
#include <thread>
#include <vector>

namespace nsa::kernels {
namespace {

// The lanes of a thread's warp.
struct WarpState {
  std::barrier<> barrier{32};
  std::array<uint32_t, 32> words;
};
thread_local WarpState* this_warp = nullptr;
thread_local int this_lane = 0;

struct Warp {
  template <typename T> static T from(T value, int lane) {
    static_assert(sizeof(T) == sizeof(uint32_t));
    std::memcpy(&this_warp->words[static_cast<std::size_t>(this_lane)], &value, sizeof(T));
    this_warp->barrier.arrive_and_wait();
    T other;
    std::memcpy(&other, &this_warp->words[static_cast<std::size_t>(lane)], sizeof(T));
    this_warp->barrier.arrive_and_wait(); // before any lane writes again
    return other;
  }
  template <typename T> static T exchange(T value, int mask) {
    return from(value, this_lane ^ mask);
  }
  template <typename T> static T of_four(T value, int lane) {
    return from(value, this_lane / 4 * 4 + lane);
  }
  static bool any(bool value) {
    bool result = value;
    for (int mask = 1; mask < 32; mask *= 2)
      result = exchange(static_cast<uint32_t>(result), mask) != 0 || result;
    return result;
  }
  static bool all(bool value) { return !any(!value); }
};

// The lanes of a warp meet at every exchange. On one core that is a switch of threads, between
// cores it is a system call and a wait: 6 s of all cases became 66 s or more on two cores.
void stay_on_one_core() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(::sched_getcpu(), &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0); // threads started later inherit it
}

template <typename Params, typename Body> void run_blocks(const Params& params, Body body) {
  stay_on_one_core();
  const int rows = params.round.kv_heads * params.shape.sequence;
  for (int block = 0; block * packed::kMergeRows < rows; ++block) {
    for (int first = 0; first < packed::kMergeThreads; first += 32) {
      WarpState state;
      std::vector<std::jthread> lanes;
      for (int lane = 0; lane < 32; ++lane) {
        lanes.emplace_back([&, lane] {
          this_warp = &state;
          this_lane = lane;
          body(params, block, first + lane);
        });
      }
    }
  }
}

constexpr int kRowValues = kHeadsPerGroup * kHeadDim;

double value_of(__nv_bfloat16 value) {
  return static_cast<double>(__bfloat162float(value));
}
double in_bf16(double value) {
  return value_of(__double2bfloat16(value));
}

// Scores have this standard deviation, in base e. With a large one, one key has all of the
// probability. If `joined`, the last tokens are in block 2. Then the first slot contains blocks 0,
// 1 and 2, and the last two slots are empty.
struct Problem {
  AttentionShape shape;
  int first_token;
  ListRound round;
  bool joined;
  std::vector<int32_t> indices;
  std::vector<__nv_bfloat16> compressed, window, selected, out, v;
  std::vector<float> gates, lse;
  std::vector<PackedOut> packed;
  // For the rows that the round merges: the exact selected output, the output from BF16 partial
  // results, and the log-sum.
  std::vector<double> exact_out, plain_out, exact_lse;
  float deviation;
  std::mt19937 random{1};
  std::normal_distribution<float> normal;

  Problem(const ListRound& which, bool joins, float score_deviation)
      : shape{1, joins ? 2 * kBlock + 7 : 11, joins ? 2 : 3}, first_token(joins ? 2 * kBlock : 4),
        round(which), joined(joins), deviation(score_deviation) {
    round.cut = {.sequence = shape.sequence, .first_token = first_token};
    const auto rows = static_cast<std::size_t>(shape.sequence * shape.groups);
    for (std::size_t row = 0; row < rows; ++row) { // some rows have fewer blocks, some have none
      const int count = !joined && row % 4 == 0 ? static_cast<int>(random() % 16) : kSlots;
      for (int slot = 0; slot < kSlots; ++slot)
        indices.push_back(slot < count ? block_of(slot) : -1);
    }
    // Every token has blocks 0 to 15, because the merge uses only the indices.
    v.resize(std::size_t{kSlots} * kBlock * static_cast<std::size_t>(shape.groups) * kHeadDim);
    for (std::vector<__nv_bfloat16>* tensor : {&compressed, &window, &selected, &out, &v}) {
      if (tensor != &v) tensor->resize(rows * kRowValues);
      for (__nv_bfloat16& value : *tensor)
        value = __float2bfloat16(normal(random));
    }
    lse.assign(rows * kHeadsPerGroup, 77.0f);
    gates.resize(lse.size() * 3);
    for (float& gate : gates)
      gate = std::fabs(normal(random));
    exact_out.assign(out.size(), 0.0);
    plain_out.assign(out.size(), 0.0);
    exact_lse.assign(lse.size(), 0.0);
    const std::size_t pairs = static_cast<std::size_t>(round.listed_rows() * slots());
    packed.resize(pairs); // unlisted pairs hold NaN
    std::memset(static_cast<void*>(packed.data()), 0xFF, pairs * sizeof(PackedOut));
    for (int kv_head = round.first_kv_head; kv_head < round.first_kv_head + round.kv_heads;
         ++kv_head) {
      for (int token = first_token; token < shape.sequence; ++token)
        fill_row(kv_head, token);
    }
  }

  // The number of slots that are written.
  int slots() const { return joined ? kJoinedSlots : kSlots; }
  int block_of(int slot) const { return !joined || slot == 0 ? slot : (slot + 2) % kSlots; }
  std::size_t row_of(int kv_head, int token) const {
    return static_cast<std::size_t>(token * shape.groups + kv_head);
  }

private:
  void fill_row(int kv_head, int token) {
    const std::size_t row = row_of(kv_head, token);
    const auto first_pair =
        static_cast<std::size_t>(PairRows(shape, round, kv_head).row(token) * slots());
    for (std::size_t head = 0; head < kHeadsPerGroup; ++head) {
      const std::size_t head_row = row * kHeadsPerGroup + head;
      Sums sums;
      for (int slot = 0; slot < slots(); ++slot) {
        const auto place = static_cast<std::size_t>(slot);
        if (indices[row * kSlots + place] < 0) continue;
        std::vector<int> blocks = {block_of(slot)};
        if (joined && slot == 0) blocks = {0, 1, 2};
        fill_slot(packed[first_pair + place], head, kv_head, blocks, sums);
      }
      for (std::size_t dim = 0; dim < kHeadDim && sums.weights > 0.0; ++dim) {
        exact_out[head_row * kHeadDim + dim] = sums.exact[dim] / sums.weights;
        plain_out[head_row * kHeadDim + dim] = in_bf16(sums.plain[dim] / sums.weights);
      }
      exact_lse[head_row] = sums.peak + std::log(sums.weights);
    }
  }

  // Sums are relative to 2^peak, so they stay finite.
  struct Sums {
    std::array<double, kHeadDim> exact = {};
    std::array<double, kHeadDim> plain = {};
    double weights = 0.0;
    double peak = 0.0;
  };

  // Writes a slot as selected_forward does.
  void fill_slot(PackedOut& slot, std::size_t head, int kv_head, const std::vector<int>& blocks,
                 Sums& sums) {
    std::vector<double> scores(blocks.size() * kBlock);
    for (double& score : scores)
      score = static_cast<double>(deviation * normal(random));
    const auto best = std::max_element(scores.begin(), scores.end());
    const int key = static_cast<int>(best - scores.begin());
    const double peak = *best;
    std::array<double, kHeadDim> values = {};
    double sum = 0.0;
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const double probability = std::exp(scores[i] - peak);
      sum += probability;
      const std::size_t row = value_row(blocks[i / kBlock], static_cast<int>(i % kBlock), kv_head);
      for (std::size_t dim = 0; dim < kHeadDim; ++dim)
        values[dim] += probability * value_of(v[row + dim]);
    }
    float largest = 0.0f;
    const double higher = sums.weights > 0.0 ? std::max(sums.peak, peak) : peak;
    const double factor = std::exp(sums.peak - higher);
    const double weight = std::exp(peak - higher) * sum;
    sums.weights = sums.weights * factor + weight;
    for (std::size_t dim = 0; dim < kHeadDim; ++dim) {
      values[dim] /= sum;
      largest = larger_magnitude(largest, static_cast<float>(values[dim]));
      sums.exact[dim] = sums.exact[dim] * factor + weight * values[dim];
      sums.plain[dim] = sums.plain[dim] * factor + weight * in_bf16(values[dim]);
    }
    sums.peak = higher;
    const bool of_one_key = static_cast<float>(sum) < 1.0f + kBesideOneKey;
    uint32_t step = row_step(largest);
    const float reciprocal = 1.0f / __builtin_bit_cast(float, step);
    for (std::size_t quad = 0; quad < kRowPieces; ++quad) {
      const auto value = [&](int i) {
        return static_cast<float>(values[static_cast<std::size_t>(i / 2 * 8 + i % 2) + 2 * quad]);
      };
      PackedPiece piece = pack_piece(value, reciprocal);
      if (of_one_key) keep_key(piece, step, key);
      slot.words[head][quad] = piece.words;
      slot.last_words[head][quad] = piece.last_word;
    }
    slot.lse[head] =
        with_fraction(static_cast<float>(peak * 1.4426950408889634 + std::log2(sum)), step);
    slot.exponents[head] = static_cast<uint8_t>(step >> 23);
  }

public:
  std::size_t value_row(int block, int key, int kv_head) const {
    return static_cast<std::size_t>((block * kBlock + key) * shape.groups + kv_head) * kHeadDim;
  }
};

struct Error {
  double difference = 0.0;
  double norm = 0.0;
  void add(double got, double exact) {
    difference += std::pow(got - exact, 2);
    norm += exact * exact;
  }
  double relative() const { return std::sqrt(difference / norm); }
};
struct Form {
  int first_kv_head;
  bool joined;
};
// A round with every KV head, whose rows are stored like those of the tensors, and a round without
// the first KV head.
class PackedMerge : public testing::TestWithParam<Form> {
protected:
  Problem make(float deviation) const {
    const Form form = GetParam();
    const int groups = form.joined ? 2 : 3;
    return Problem({form.first_kv_head, groups - form.first_kv_head, {}}, form.joined, deviation);
  }
  static void merge(Problem& p) {
    const MergeParams params = {.shape = p.shape,
                                .round = p.round,
                                .indices = p.indices.data(),
                                .first_token = p.first_token,
                                .joined = p.joined,
                                .packed = p.packed.data(),
                                .v = p.v.data(),
                                .out_slc = p.selected.data(),
                                .lse_slc = p.lse.data(),
                                .out_cmp = p.compressed.data(),
                                .out_win = p.window.data(),
                                .gates = p.gates.data(),
                                .out = p.out.data()};
    run_blocks(params,
               p.joined ? packed::merge_pieces<Warp, true> : packed::merge_pieces<Warp, false>);
  }
};

TEST_P(PackedMerge, JoinsOutputsUnderWeightsAndGates) {
  Problem p = make(1.0f);
  const std::vector<__nv_bfloat16> before = p.selected;
  const std::vector<__nv_bfloat16> out_before = p.out;
  merge(p);
  Error selected;
  Error out;
  for (int kv_head = 0; kv_head < p.shape.groups; ++kv_head) {
    for (int token = 0; token < p.shape.sequence; ++token) {
      const bool in_round = kv_head >= p.round.first_kv_head;
      const bool merged = in_round && token >= p.first_token;
      for (std::size_t head = 0; head < kHeadsPerGroup; ++head) {
        const std::size_t head_row = p.row_of(kv_head, token) * kHeadsPerGroup + head;
        if (!merged) {
          EXPECT_EQ(p.lse[head_row], 77.0f);
        } else if (std::isinf(p.exact_lse[head_row])) { // the row has no block
          EXPECT_EQ(p.lse[head_row], -INFINITY);
        } else {
          EXPECT_NEAR(static_cast<double>(p.lse[head_row]), p.exact_lse[head_row], 1e-5);
        }
        const float* gates = &p.gates[head_row * 3];
        for (std::size_t i = head_row * kHeadDim; i < (head_row + 1) * kHeadDim; ++i) {
          const double exact = merged ? p.exact_out[i] : value_of(before[i]);
          if (merged) {
            selected.add(value_of(p.selected[i]), exact);
          } else {
            EXPECT_EQ(value_of(p.selected[i]), exact);
          }
          if (in_round) {
            out.add(value_of(p.out[i]), static_cast<double>(gates[0]) * value_of(p.compressed[i]) +
                                            static_cast<double>(gates[1]) * exact +
                                            static_cast<double>(gates[2]) * value_of(p.window[i]));
          } else {
            EXPECT_EQ(value_of(p.out[i]), value_of(out_before[i]));
          }
        }
      }
    }
  }
  EXPECT_LT(selected.relative(), 0.0025); // rounding to BF16 alone gives 0.0017
  EXPECT_LT(out.relative(), 0.0025);
}

// Gradients need this where one key has nearly all of the probability. There dS = P (dP - delta) is
// small, and delta contains the error of the output. A BF16 output has no such error.
TEST_P(PackedMerge, LosesAsLittleAsBf16WhereProbabilitiesAreSharp) {
  for (const float deviation : {1.0f, 12.0f, 400.0f}) {
    Problem p = make(deviation);
    merge(p);
    Error packed;
    Error plain;
    for (int kv_head = p.round.first_kv_head; kv_head < p.shape.groups; ++kv_head) {
      for (int token = p.first_token; token < p.shape.sequence; ++token) {
        const std::size_t first = p.row_of(kv_head, token) * kRowValues;
        for (std::size_t i = first; i < first + kRowValues; ++i) {
          packed.add(value_of(p.selected[i]), p.exact_out[i]);
          plain.add(p.plain_out[i], p.exact_out[i]);
        }
      }
    }
    EXPECT_LT(packed.relative(), 1.5 * plain.relative()) << deviation;
  }
}

TEST_P(PackedMerge, OneKeyGivesItsValueBitForBit) {
  Problem p = make(3000.0f);
  merge(p);
  int rows = 0;
  for (int kv_head = p.round.first_kv_head; kv_head < p.shape.groups; ++kv_head) {
    for (int token = p.first_token; token < p.shape.sequence; ++token) {
      for (std::size_t head = 0; head < kHeadsPerGroup; ++head) {
        const std::size_t first = (p.row_of(kv_head, token) * kHeadsPerGroup + head) * kHeadDim;
        const auto is_value = [&](std::size_t row) {
          for (std::size_t dim = 0; dim < kHeadDim; ++dim)
            if (std::fabs(value_of(p.v[row + dim]) - p.exact_out[first + dim]) > 1e-9) return false;
          return true;
        };
        for (int key = 0; key < kSlots * kBlock; ++key) {
          const std::size_t row = p.value_row(key / kBlock, key % kBlock, kv_head);
          if (!is_value(row)) continue;
          ++rows;
          for (std::size_t dim = 0; dim < kHeadDim; ++dim)
            ASSERT_EQ(value_of(p.selected[first + dim]), value_of(p.v[row + dim]));
        }
      }
    }
  }
  EXPECT_GT(rows, 40);
}

INSTANTIATE_TEST_SUITE_P(Rounds, PackedMerge,
                         testing::Values(Form{0, false}, Form{1, false}, Form{0, true},
                                         Form{1, true}));

} // namespace
} // namespace nsa::kernels
