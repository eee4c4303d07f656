#pragma once
// Random row numbers of a table with the frequencies of words. Pure, any thread.

#include <cstdint>
#include <random>
#include <vector>

namespace nsa::kernels::check {

using Ids = std::vector<int64_t>;

// Draws ids with word-like frequencies: the r-th of `rows` has weight 1 / (r + 1).
inline Ids like_text(int tokens, int rows, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<double> weights(static_cast<std::size_t>(rows));
  for (int r = 0; r < rows; ++r)
    weights[static_cast<std::size_t>(r)] = 1.0 / (r + 1);
  std::discrete_distribution<int64_t> row(weights.begin(), weights.end());
  Ids ids(static_cast<std::size_t>(tokens));
  for (int64_t& id : ids)
    id = row(generator);
  return ids;
}

} // namespace nsa::kernels::check
