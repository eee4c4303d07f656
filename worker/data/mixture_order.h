// The order of training over several data sets. Pure, like sample_order.h, which it extends.
//
// Weights are integers; their sum W is the length of a period. In each period of W sequences source
// k has exactly weight_k places: a permutation keyed with seed and period deals the places out. The
// j-th sequence that falls to a source over the whole run is sample j of that source's own endless
// order. So the n-th sequence is a function of (n, seed, weights, sizes) alone: nothing has to be
// stored for a resume, and the number of ranks does not enter.
#pragma once

#include "worker/data/sample_order.h"

#include <vector>

namespace nsa::data {

class MixtureOrder {
public:
  struct Part {
    int64_t samples = 0; // >= 1
    int64_t weight = 1;  // >= 1
  };
  // At least one part. One alone has SampleOrder's order.
  MixtureOrder(const std::vector<Part>& parts, int64_t sequence_length, uint64_t seed);

  SequenceAddress at(int64_t sequence) const;
  int64_t period() const { return ends_.back(); }

private:
  std::vector<SampleOrder> orders_; // of each source
  std::vector<int64_t> ends_;       // place in a period behind each source's last
  uint64_t seed_;
};

} // namespace nsa::data
