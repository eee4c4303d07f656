// Summary of measured times: median and spread.
#pragma once

#include "worker/runtime/stopwatch.h"

#include <vector>

namespace nsa::bench {

using runtime::Stopwatch;

struct Spread {
  double median = 0, low = 0, high = 0; // low, high: tenth and ninetieth percentile
};
Spread spread_of(std::vector<double> values);

} // namespace nsa::bench
