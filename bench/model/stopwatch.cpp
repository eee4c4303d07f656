#include "bench/model/stopwatch.h"

#include <algorithm>

namespace nsa::bench {

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values[values.size() / 10], values[values.size() * 9 / 10]};
}

} // namespace nsa::bench
