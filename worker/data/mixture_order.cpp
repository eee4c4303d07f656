#include "worker/data/mixture_order.h"

#include "worker/data/permutation.h"

#include <algorithm>

namespace nsa::data {

namespace {

// Otherwise sources of equal size would read their samples in the same order.
uint64_t seed_of_source(uint64_t seed, size_t source) {
  return seed + 0xD1342543DE82EF95ull * (source + 1);
}

} // namespace

MixtureOrder::MixtureOrder(const std::vector<Part>& parts, int64_t sequence_length, uint64_t seed)
    : seed_(seed) {
  int64_t end = 0;
  for (size_t k = 0; k < parts.size(); ++k) {
    orders_.emplace_back(parts[k].samples, sequence_length,
                         parts.size() == 1 ? seed : seed_of_source(seed, k));
    ends_.push_back(end += parts[k].weight);
  }
}

SequenceAddress MixtureOrder::at(int64_t sequence) const {
  if (orders_.size() == 1) return orders_[0].at(sequence);
  const int64_t number = sequence / period();
  const int64_t place = Permutation(period(), seed_, number)(sequence % period());
  const auto source =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), place) - ends_.begin());
  const int64_t begin = source == 0 ? 0 : ends_[source - 1];
  const int64_t weight = ends_[source] - begin;
  SequenceAddress address = orders_[source].at(number * weight + place - begin);
  address.sequence = sequence;
  address.source = static_cast<int64_t>(source);
  return address;
}

} // namespace nsa::data
