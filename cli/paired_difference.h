// The difference between two variants that were measured in pairs, with a confidence interval.
// Pure.
//
// Runs of one pair follow each other in time, and share seed and data. If something slows the host
// for minutes, it slows both, and their ratio stays the same. The order of the pairs alternates, A
// before B and B before A. So a host that slows down steadily favours neither. The model is that of
// a crossover trial: log(B/A) of a pair = difference + effect of its order + noise, fitted by least
// squares.
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
  bool b_first = false; // whether B ran first
};

struct PairedDifference {
  size_t pairs = 0;
  double confidence = 0.99;
  double ratio = 1;         // B over A, geometric mean
  double low = 1, high = 1; // confidence interval of the ratio
  double spread = 0;        // standard deviation of a pair's noise
  // kLess and kMore compare B with A; the whole interval agrees.
  AbVerdict verdict = AbVerdict::kUndecided;
};

// Error: kInvalidArgument for fewer than three pairs, pairs of only one order, a value that is not
// above 0, or a confidence outside (0.5, 1).
Result<PairedDifference> paired_difference(const std::vector<PairOfValues>& pairs,
                                           double confidence);

// Returns how many pairs would show this ratio at this spread with a probability of 80 %. The
// result is at most 10,000.
size_t pairs_to_show(double ratio, double spread, double confidence);

// Returns the verdict as text, for example:
//   b has 2.1 % less tokens_per_second than a (99 % interval: 1.5 % to 2.7 % less, 10 pairs)
//   undecided: ... ; about 24 pairs would show a difference of 2 %
std::string verdict_text(const PairedDifference& difference, const std::string& metric,
                         const std::string& a, const std::string& b);

// Returns the two-sided quantile of Student's t distribution: |t| is below it with this
// probability.
double student_t(double confidence, double degrees);

} // namespace nsa::cli
