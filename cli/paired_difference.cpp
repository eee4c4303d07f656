#include "cli/paired_difference.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace nsa::cli {

namespace {

constexpr double kOfInterest = 1.02; // ratio for which an undecided answer counts pairs
constexpr size_t kMostPairs = 10'000;

// Evaluates the continued fraction of the incomplete beta function (modified Lentz method).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300, kClose = 1e-15;
  constexpr int kMostTerms = 10'000;
  const auto nonzero = [](double value) { return std::fabs(value) < kTiny ? kTiny : value; };
  double c = 1, d = 1 / nonzero(1 - (a + b) * x / (a + 1)), value = d;
  for (int m = 1; m <= kMostTerms; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / nonzero(1 + even * d);
    c = nonzero(1 + even / c);
    value *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / nonzero(1 + odd * d);
    c = nonzero(1 + odd / c);
    value *= d * c;
    if (std::fabs(d * c - 1) < kClose) break;
  }
  return value;
}

// The regularised incomplete beta function I_x(a, b).
double regular_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a
                                   : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

// Returns the probability that |t| is at least this large, for this many degrees of freedom.
double tail_probability(double t, double degrees) {
  return regular_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
}

double log_of(const PairOfValues& pair) {
  return std::log(pair.b / pair.a);
}
double sign_of(const PairOfValues& pair) {
  return pair.b_first ? 1 : -1;
}

std::string percent(double ratio) {
  char text[64];
  const double value = std::fabs(ratio - 1) * 100;
  std::snprintf(text, sizeof text, value < 0.095 && value > 0 ? "%.2g %%" : "%.1f %%", value);
  return text;
}

std::string direction(double ratio) {
  return ratio < 1 ? "less" : "more";
}

} // namespace

double student_t(double confidence, double degrees) {
  const double tail = 1 - confidence;
  double low = 0, high = 1;
  while (tail_probability(high, degrees) > tail && high < 1e12)
    high *= 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (tail_probability(middle, degrees) > tail ? low : high) = middle;
  }
  return (low + high) / 2;
}

Result<PairedDifference> paired_difference(const std::vector<PairOfValues>& pairs,
                                           double confidence) {
  const auto b_first = std::count_if(pairs.begin(), pairs.end(),
                                     [](const PairOfValues& pair) { return pair.b_first; });
  if (pairs.size() < 3 || b_first == 0 || static_cast<size_t>(b_first) == pairs.size())
    return fail(ErrorCode::kInvalidArgument,
                "a confidence interval needs three pairs or more, in both orders",
                "nsactl ab run.toml --toggle KEY=A,B --pairs 10");
  if (!(confidence > 0.5 && confidence < 1))
    return fail(ErrorCode::kInvalidArgument, "the confidence is above 0.5 and below 1",
                "leave --confidence out; it is 0.99 then");
  // Sums of 1, of the order (+-1), of log, and of order times log.
  double count = 0, orders = 0, sum = 0, by_order = 0;
  for (const PairOfValues& pair : pairs) {
    if (!(pair.a > 0 && pair.b > 0 && std::isfinite(pair.a) && std::isfinite(pair.b)))
      return fail(ErrorCode::kInvalidArgument,
                  "a ratio needs values above 0: " + std::to_string(pair.a) + " and " +
                      std::to_string(pair.b),
                  "choose another metric: --metric tokens_per_second");
    count += 1;
    orders += sign_of(pair);
    sum += log_of(pair);
    by_order += sign_of(pair) * log_of(pair);
  }
  const double determinant = count * count - orders * orders;
  const double mean = (count * sum - orders * by_order) / determinant;
  const double effect = (count * by_order - orders * sum) / determinant;
  double squares = 0;
  for (const PairOfValues& pair : pairs) {
    const double noise = log_of(pair) - mean - effect * sign_of(pair);
    squares += noise * noise;
  }
  PairedDifference found;
  found.pairs = pairs.size();
  found.confidence = confidence;
  found.spread = std::sqrt(squares / (count - 2));
  const double error = found.spread * std::sqrt(count / determinant);
  const double half = student_t(confidence, count - 2) * error;
  found.ratio = std::exp(mean);
  found.low = std::exp(mean - half);
  found.high = std::exp(mean + half);
  if (found.low > 1) found.verdict = AbVerdict::kMore;
  if (found.high < 1) found.verdict = AbVerdict::kLess;
  return found;
}

size_t pairs_to_show(double ratio, double spread, double confidence) {
  constexpr double kPower = 0.8416; // 80 % quantile of the normal distribution
  const double difference = std::fabs(std::log(ratio));
  const auto shows = [&](size_t pairs) {
    const auto count = static_cast<double>(pairs);
    return (student_t(confidence, count - 2) + kPower) * spread / std::sqrt(count) <= difference;
  };
  size_t low = 2, high = 4; // `low` pairs are too few
  while (high < kMostPairs && !shows(high)) {
    low = high;
    high = std::min(kMostPairs, high * 2);
  }
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    (shows(middle) ? high : low) = middle;
  }
  return high;
}

std::string verdict_text(const PairedDifference& found, const std::string& metric,
                         const std::string& a, const std::string& b) {
  char confidence[32];
  std::snprintf(confidence, sizeof confidence, "%g %%", found.confidence * 100);
  const std::string pairs = std::to_string(found.pairs) + " pairs";
  if (found.verdict != AbVerdict::kUndecided) {
    const bool more = found.verdict == AbVerdict::kMore;
    return b + " has " + percent(found.ratio) + " " + direction(found.ratio) + " " + metric +
           " than " + a + " (" + confidence +
           " interval: " + percent(more ? found.low : found.high) + " to " +
           percent(more ? found.high : found.low) + " " + direction(found.ratio) + ", " + pairs +
           ")";
  }
  if (found.spread == 0)
    return "undecided: " + a + " and " + b + " have the same " + metric + " in all " + pairs;
  const size_t needed = pairs_to_show(kOfInterest, found.spread, found.confidence);
  std::string text = "undecided: " + metric + " of " + b + " is between " + percent(found.low) +
                     " less and " + percent(found.high) + " more than of " + a + " (" + confidence +
                     " interval, " + pairs + ")";
  if (needed > found.pairs)
    text += "; about " + std::to_string(needed) + " pairs would show a difference of 2 %";
  return text;
}

} // namespace nsa::cli
