#include "tests/gpu/kernels/selection_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nsa_model/kernels/selection/selection.h"
#include "tests/gpu/kernels/oracle.h"

namespace nsa::kernels::check {
namespace {

// Bounds for a choice of blocks, relative to a row's best score in float64. FP32 may confuse nearly
// equal scores. In few rows the difference may be larger, but a clearly worse block is never right.
constexpr double kNearlyEqual = 1e-5;
constexpr double kClearlyWorse = 2e-3;
constexpr double kMostSwapped = 0.01; // of the scored rows

// Returns which blocks a row of indices names. Returns nothing if they are out of order or a forced
// block is missing.
std::optional<std::vector<bool>> taken_blocks(const int32_t* slots, int own, int blocks) {
  const int expected = std::min(kSlots, own + 1);
  std::vector<bool> taken(static_cast<std::size_t>(blocks), false);
  for (int i = 0; i < kSlots; ++i) {
    const bool good = i < expected
                          ? slots[i] >= 0 && slots[i] <= own && (i == 0 || slots[i] > slots[i - 1])
                          : slots[i] == -1;
    if (!good) return std::nullopt;
    if (i < expected) taken[static_cast<std::size_t>(slots[i])] = true;
  }
  const bool forced = taken[0] && taken[static_cast<std::size_t>(own)] &&
                      taken[static_cast<std::size_t>(std::max(0, own - 1))];
  return forced ? std::optional(std::move(taken)) : std::nullopt;
}

} // namespace

void SelectionJudge::add(const int32_t* slots, const double* score, int token, int blocks,
                         bool all_equal) {
  const int own = token / kBlock;
  const auto named = taken_blocks(slots, own, blocks);
  if (!named) {
    ++broken_;
    return;
  }
  const std::vector<bool>& taken = *named;
  if (own >= kSlots) ++scored_;
  double least_taken = INFINITY;
  double most_left = -INFINITY;
  double most = 0.0;
  bool tie_upwards = false; // a block that was left out equals a taken block with a higher number
  for (int b = 1; b <= own - 2; ++b) {
    most = std::max(most, score[b]);
    if (taken[static_cast<std::size_t>(b)]) {
      least_taken = std::min(least_taken, score[b]);
    } else {
      most_left = std::max(most_left, score[b]);
    }
  }
  if (all_equal && own >= kSlots) { // the lowest blocks must be taken
    for (int b = 1; b <= kSlots - 3; ++b)
      tie_upwards = tie_upwards || !taken[static_cast<std::size_t>(b)];
  }
  const double gap = most_left - least_taken;
  if (gap > kClearlyWorse * most) {
    ++wrong_;
  } else if (gap > kNearlyEqual * most) {
    ++swapped_;
  }
  if (tie_upwards) ++wrong_;
}

void SelectionJudge::tell(Report& report) const {
  const std::string counts = "selection: " + std::to_string(broken_) + " rows broken, " +
                             std::to_string(wrong_) + " wrong, " + std::to_string(swapped_) +
                             " swapped near the cut, of " + std::to_string(scored_) +
                             " scored ones";
  if (swapped_ > 0) std::printf("  %s\n", counts.c_str());
  report.expect(counts, broken_ + wrong_ == 0 && static_cast<double>(swapped_) <=
                                                     kMostSwapped * static_cast<double>(scored_));
}

void check_selection(const AttentionCase& c, const BranchOracle& compressed, Report& report) {
  const AttentionShape& shape = c.options.shape;
  const int blocks = block_count(shape.sequence);
  const std::size_t group_rows = c.rows / static_cast<std::size_t>(shape.heads);
  // Computes the scores of some rows at a time, because those of a long sequence would need
  // gigabytes.
  constexpr std::size_t kScores = std::size_t{1} << 25;
  const std::size_t most_rows =
      std::min(group_rows, std::max<std::size_t>(1, kScores / static_cast<std::size_t>(blocks)));
  DeviceBuffer<double> device_scores(most_rows * static_cast<std::size_t>(blocks));
  std::vector<double> scores;
  OracleScoresParams params;
  params.shape = shape;
  params.q = c.q.get();
  params.k_cmp = c.k_cmp.get();
  params.scale = static_cast<double>(c.scale());
  params.lse = compressed.lse.get();
  params.scores = device_scores.get();
  const std::vector<int32_t> indices = c.indices.to_host();
  SelectionJudge judge;
  for (std::size_t row = 0; row < group_rows; ++row) {
    if (row % most_rows == 0) {
      params.first_row = static_cast<int64_t>(row);
      params.rows = static_cast<int64_t>(std::min(most_rows, group_rows - row));
      cuda_check(launch_oracle_scores(params, nullptr), "oracle scores");
      scores = device_scores.to_host();
    }
    const int token =
        static_cast<int>(row / static_cast<std::size_t>(shape.groups)) % shape.sequence;
    judge.add(&indices[row * kSlots], &scores[row % most_rows * static_cast<std::size_t>(blocks)],
              token, blocks, c.options.key_deviation == 0.0f);
  }
  judge.tell(report);
}

} // namespace nsa::kernels::check
