#include "worker/inference/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nsa::inference {

int64_t TokenSampler::next(std::span<const float> logits) {
  const auto most = std::max_element(logits.begin(), logits.end());
  if (rule_.temperature == 0) return most - logits.begin();
  std::vector<double> weight(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    weight[i] = std::exp((double(logits[i]) - double(*most)) / rule_.temperature);
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return weight[size_t(a)] > weight[size_t(b)]; });
  size_t kept = 0;
  double sum = 0;
  while (kept < order.size() && (kept == 0 || sum < rule_.top_p * total))
    sum += weight[size_t(order[kept++])];
  const double point = double(random_() >> 11) * 0x1p-53 * sum;
  double passed = 0;
  for (size_t i = 0; i < kept; ++i) {
    passed += weight[size_t(order[i])];
    if (point < passed) return order[i];
  }
  return order[kept - 1];
}

std::string Utf8Pieces::add(std::string_view bytes) {
  held_ += bytes;
  // Only the last three bytes can begin an incomplete character.
  size_t whole = held_.size();
  for (size_t back = 1; back <= std::min<size_t>(3, held_.size()); ++back) {
    const auto byte = static_cast<unsigned char>(held_[held_.size() - back]);
    if ((byte & 0xc0) == 0x80) continue; // continuation byte
    const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    if (length > back) whole = held_.size() - back;
    break;
  }
  std::string out = held_.substr(0, whole);
  held_.erase(0, whole);
  return out;
}

} // namespace nsa::inference
