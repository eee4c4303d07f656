// The difference between two variants that were measured in pairs, with a confidence interval.
// Pure.
//
// Runs of one pair stand next to each other in time, and share seed and data. What slows the host
// for minutes slows both, and leaves their ratio as it is. Pairs change their order, A before B and
// B before A, so that a host that slows down steadily favours neither. The model is that of a
// crossover trial: log(B/A) of a pair = difference + effect of its order + noise, by least squares.
#pragma once

#include "common/base/choice.h"
#include "common/base/result.h"

#include <string>
#include <vector>

namespace nsa::cli {

enum class AbVerdict : uint8_t { kUndecided, kLess, kMore };
constexpr auto choice_names(AbVerdict) {
  return names_of("undecided", "less", "more");
}

struct PairOfValues {
  double a = 0, b = 0;
  bool b_first = false; // which of them ran first
};

struct PairedDifference {
  size_t pairs = 0;
  double confidence = 0.99;
  double ratio = 1;                          // B over A, geometric mean
  double low = 1, high = 1;                  // confidence interval of the ratio
  double spread = 0;                         // standard deviation of the noise of a pair
  AbVerdict verdict = AbVerdict::kUndecided; // kLess, kMore: B than A, the whole interval says so
};

// kInvalidArgument: fewer than three pairs or all of one order, a value that is not above 0, or a
// confidence outside (0.5, 1).
Result<PairedDifference> paired_difference(const std::vector<PairOfValues>& pairs,
                                           double confidence);

// How many pairs would show a difference of this ratio (1.02) at this spread, about four times in
// five; at most 10,000.
size_t pairs_to_show(double ratio, double spread, double confidence);

// "b has 2.1 % less tokens_per_second than a (99 % interval: 1.5 % to 2.7 % less, 10 pairs)", or
// "undecided: ... ; about 24 pairs would show 2 %".
std::string verdict_text(const PairedDifference& difference, const std::string& metric,
                         const std::string& a, const std::string& b);

// The two-sided quantile of Student's t distribution: |t| is below it with this probability.
double student_t(double confidence, double degrees);

} // namespace nsa::cli
