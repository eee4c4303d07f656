#include "worker/data/follow_order.h"

#include "worker/data/permutation.h"

#include <algorithm>

namespace nsa::data {
namespace {

// Otherwise generations of equal size would be read in the same order.
uint64_t seed_of_generation(uint64_t seed, size_t generation) {
  return seed + 0xA24BAED4963EE407ull * (generation + 1);
}

} // namespace

void FollowOrder::add(int64_t tokens) {
  tokens_ += tokens;
  ends_.push_back(sample_count(tokens_, sequence_length_));
}

SequenceAddress FollowOrder::at(int64_t sequence) const {
  if (sequence >= samples()) return SampleOrder(samples(), sequence_length_, seed_).at(sequence);
  const auto found = std::upper_bound(ends_.begin(), ends_.end(), sequence);
  const auto generation = static_cast<size_t>(found - ends_.begin());
  const int64_t begin = generation == 0 ? 0 : ends_[generation - 1];
  const Permutation order(*found - begin, seed_of_generation(seed_, generation), 0);
  const int64_t sample = begin + order(sequence - begin);
  return {sequence, 0, sample, sample * sequence_length_};
}

size_t FollowOrder::read_by(int64_t count) const {
  if (count < 1) return 1;
  if (count > samples()) return ends_.size();
  const auto last = std::upper_bound(ends_.begin(), ends_.end(), count - 1);
  return static_cast<size_t>(last - ends_.begin()) + 1;
}

} // namespace nsa::data
