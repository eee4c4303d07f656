// The order of training over several data sets. It does no I/O, and extends sample_order.h.
//
// Weights are integers; their sum W is the length of a period. In each period of W sequences source
// k has exactly weight_k places; a permutation keyed with seed and period distributes them. Over
// the whole run, the j-th sequence of a source is sample j of that source's own endless order. So
// the n-th sequence is a function of (n, seed, weights, sizes) only. A resume needs no stored
// state, and the order does not depend on the number of ranks.
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
  // Needs at least one part. A single part has SampleOrder's order.
  MixtureOrder(const std::vector<Part>& parts, int64_t sequence_length, uint64_t seed);

  SequenceAddress at(int64_t sequence) const;
  int64_t period() const { return ends_.back(); }

private:
  std::vector<SampleOrder> orders_; // indexed by source
  std::vector<int64_t> ends_;       // end of each source's places in a period
  uint64_t seed_;
};

} // namespace nsa::data
