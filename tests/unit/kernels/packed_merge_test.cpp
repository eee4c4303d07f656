// The two merges of packed partial results, every thread of them on the CPU: the lanes of a warp
// are 32 threads that meet at each exchange.
#include "nsa_model/kernels/block_lists/rounds.cuh"
#include "nsa_model/kernels/combine/packed_merge.cuh"

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <thread>
#include <vector>

namespace nsa::kernels {
namespace {

// The lanes of the warp that a thread belongs to.
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
    this_warp->barrier.arrive_and_wait(); // before anyone writes again
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

template <typename Params, typename Body> void run_blocks(const Params& params, Body body) {
  const int rows = params.round.lanes * params.shape.sequence;
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

struct Problem {
  AttentionShape shape = {1, 11, 3};
  int first_token = 4;
  ListRound round;
  std::vector<int32_t> indices;
  std::vector<__nv_bfloat16> compressed, window, selected, out, d_q;
  std::vector<float> gates, lse;
  std::vector<PackedOut> packed;
  std::vector<PackedQueryGradient> packed_dq;
  // Exact, of rows that the round merges: selected output, its log-sum, sum of dQ.
  std::vector<double> exact_out, exact_lse, exact_dq;
  std::mt19937 random{1};
  std::normal_distribution<float> normal;

  explicit Problem(const ListRound& which) : round(which) {
    const std::size_t rows = std::size_t{11} * 3;
    for (std::size_t row = 0; row < rows; ++row) { // some with fewer blocks, some with none
      const int count = row % 4 == 0 ? static_cast<int>(random() % 16) : kSlots;
      for (int slot = 0; slot < kSlots; ++slot)
        indices.push_back(slot < count ? slot : -1);
    }
    for (std::vector<__nv_bfloat16>* tensor : {&compressed, &window, &selected, &out, &d_q}) {
      tensor->resize(rows * kRowValues);
      for (__nv_bfloat16& value : *tensor)
        value = __float2bfloat16(normal(random));
    }
    lse.assign(rows * kHeadsPerGroup, 77.0f);
    gates.resize(lse.size() * 3);
    for (float& gate : gates)
      gate = std::fabs(normal(random));
    exact_out.assign(out.size(), 0.0);
    exact_dq.assign(out.size(), 0.0);
    exact_lse.assign(lse.size(), 0.0);
    const std::size_t pairs = static_cast<std::size_t>(round.lanes) * 11 * kSlots;
    packed.resize(pairs); // unlisted pairs hold NaN
    packed_dq.resize(pairs);
    std::memset(static_cast<void*>(packed.data()), 0xFF, pairs * sizeof(PackedOut));
    std::memset(static_cast<void*>(packed_dq.data()), 0xFF, pairs * sizeof(PackedQueryGradient));
    for (int lane = round.first_lane; lane < round.first_lane + round.lanes; ++lane) {
      for (int token = first_token; token < shape.sequence; ++token)
        fill_row(lane, token);
    }
  }

  std::size_t row_of(int lane, int token) const {
    return static_cast<std::size_t>(token * shape.groups + lane);
  }

private:
  void fill_row(int lane, int token) {
    const std::size_t row = row_of(lane, token);
    const auto first_pair =
        static_cast<std::size_t>(PairRows(shape, round, lane).row(token)) * kSlots;
    for (std::size_t head = 0; head < kHeadsPerGroup; ++head) {
      const std::size_t head_row = row * kHeadsPerGroup + head;
      double total = 0.0;
      for (std::size_t slot = 0; slot < kSlots; ++slot) {
        if (indices[row * kSlots + slot] < 0) continue;
        const float score = 3.0f * normal(random);
        total += std::exp2(static_cast<double>(score));
        fill_slot(packed[first_pair + slot], packed_dq[first_pair + slot], head, head_row, score);
      }
      for (std::size_t i = head_row * kHeadDim; i < (head_row + 1) * kHeadDim && total > 0.0; ++i)
        exact_out[i] /= total;
      exact_lse[head_row] = std::log(total);
    }
  }

  void fill_slot(PackedOut& slot, PackedQueryGradient& slot_dq, std::size_t head,
                 std::size_t head_row, float score) {
    std::array<float, kHeadDim> values;
    std::array<float, kHeadDim> gradients;
    float largest = 0.0f;
    for (std::size_t dim = 0; dim < kHeadDim; ++dim) {
      values[dim] = normal(random);
      gradients[dim] = normal(random);
      largest = larger_magnitude(largest, values[dim]);
      exact_out[head_row * kHeadDim + dim] +=
          std::exp2(static_cast<double>(score)) * static_cast<double>(values[dim]);
      exact_dq[head_row * kHeadDim + dim] += static_cast<double>(gradients[dim]);
    }
    const uint32_t step = row_step(largest);
    slot.lse[head] = join_fraction(score, step);
    slot.exponents[head] = static_cast<uint8_t>(step >> 23);
    for (std::size_t quad = 0; quad < kRowPieces; ++quad) {
      const auto out_value = [&](int i) {
        return values[static_cast<std::size_t>(i / 2 * 8 + i % 2) + 2 * quad];
      };
      const PackedPiece piece = pack_piece(out_value, 1.0f / __builtin_bit_cast(float, step));
      slot.words[head][quad] = piece.words;
      slot.last_words[head][quad] = piece.last_word;
      float most = 0.0f;
      const auto gradient = [&](int i) {
        return gradients[16 * quad + static_cast<std::size_t>(i)];
      };
      for (int i = 0; i < kPieceValues; ++i)
        most = larger_magnitude(most, gradient(i));
      const uint32_t exponent = piece_exponent(__builtin_bit_cast(uint32_t, most * 1.01f) >> 16);
      const PackedPiece piece_dq = pack_piece(gradient, reciprocal_exponent_step(exponent));
      slot_dq.words[head][quad] = piece_dq.words;
      slot_dq.last_words[head][quad] = piece_dq.last_word;
      slot_dq.exponents[head][quad] = static_cast<uint8_t>(exponent);
    }
  }
};

struct Error {
  double difference = 0.0;
  double norm = 0.0;
  void add(__nv_bfloat16 got, double exact) {
    difference += std::pow(static_cast<double>(__bfloat162float(got)) - exact, 2);
    norm += exact * exact;
  }
  double relative() const { return std::sqrt(difference / norm); }
};
double value_of(__nv_bfloat16 value) {
  return static_cast<double>(__bfloat162float(value));
}

// A round with every lane, whose rows lie as the tensors', and one without the first lane.
class PackedMerge : public testing::TestWithParam<int> {
protected:
  Problem problem{{GetParam(), 3 - GetParam()}};
};

TEST_P(PackedMerge, JoinsOutputsUnderWeightsAndGates) {
  Problem& p = problem;
  const std::vector<__nv_bfloat16> before = p.selected;
  const std::vector<__nv_bfloat16> out_before = p.out;
  const MergeParams params = {.shape = p.shape,
                              .round = p.round,
                              .indices = p.indices.data(),
                              .first_token = p.first_token,
                              .packed = p.packed.data(),
                              .out_slc = p.selected.data(),
                              .lse_slc = p.lse.data(),
                              .out_cmp = p.compressed.data(),
                              .out_win = p.window.data(),
                              .gates = p.gates.data(),
                              .out = p.out.data()};
  run_blocks(params, packed::merge_pieces<Warp>);
  Error selected;
  Error out;
  for (int lane = 0; lane < p.shape.groups; ++lane) {
    for (int token = 0; token < p.shape.sequence; ++token) {
      const bool in_round = lane >= p.round.first_lane;
      const bool merged = in_round && token >= p.first_token;
      for (std::size_t head = 0; head < kHeadsPerGroup; ++head) {
        const std::size_t head_row = p.row_of(lane, token) * kHeadsPerGroup + head;
        if (!merged) {
          EXPECT_EQ(p.lse[head_row], 77.0f);
        } else if (std::isinf(p.exact_lse[head_row])) { // no block at all
          EXPECT_EQ(p.lse[head_row], -INFINITY);
        } else {
          EXPECT_NEAR(static_cast<double>(p.lse[head_row]), p.exact_lse[head_row], 1e-5);
        }
        const float* gates = &p.gates[head_row * 3];
        for (std::size_t i = head_row * kHeadDim; i < (head_row + 1) * kHeadDim; ++i) {
          const double exact = merged ? p.exact_out[i] : value_of(before[i]);
          if (merged) {
            selected.add(p.selected[i], exact);
          } else {
            EXPECT_EQ(value_of(p.selected[i]), exact);
          }
          if (in_round) {
            out.add(p.out[i], static_cast<double>(gates[0]) * value_of(p.compressed[i]) +
                                  static_cast<double>(gates[1]) * exact +
                                  static_cast<double>(gates[2]) * value_of(p.window[i]));
          } else {
            EXPECT_EQ(value_of(p.out[i]), value_of(out_before[i]));
          }
        }
      }
    }
  }
  EXPECT_LT(selected.relative(), 0.0025); // BF16 of the result alone: 0.0017
  EXPECT_LT(out.relative(), 0.0025);
}

TEST_P(PackedMerge, SumsQueryGradients) {
  Problem& p = problem;
  const MergeQueryGradientParams params = {
      .shape = p.shape,
      .round = p.round,
      .indices = p.indices.data(),
      .first_token = p.first_token,
      .scale = 0.25f,
      .packed_dq = p.packed_dq.data(),
      .addends = {p.compressed.data(), p.selected.data(), p.window.data()},
      .addend_end = {p.shape.sequence, p.first_token, p.shape.sequence},
      .d_q = p.d_q.data()};
  run_blocks(params, packed::merge_query_gradients<Warp>);
  Error error;
  for (int lane = p.round.first_lane; lane < p.shape.groups; ++lane) {
    for (int token = 0; token < p.shape.sequence; ++token) {
      const std::size_t first = p.row_of(lane, token) * kRowValues;
      for (std::size_t i = first; i < first + kRowValues; ++i) {
        error.add(p.d_q[i],
                  value_of(p.compressed[i]) + value_of(p.window[i]) +
                      (token < p.first_token ? value_of(p.selected[i]) : 0.25 * p.exact_dq[i]));
      }
    }
  }
  EXPECT_LT(error.relative(), 0.0025);
}

INSTANTIATE_TEST_SUITE_P(Rounds, PackedMerge, testing::Values(0, 1));

} // namespace
} // namespace nsa::kernels
