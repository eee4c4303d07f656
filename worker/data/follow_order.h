// The order of training over a data set that still grows (data.follow). It does no I/O; the caller
// must lock it.
//
// Let T_k be the tokens of the first k + 1 shards of the train split, and N_k = (T_k - 1) / S.
// Generation k has the samples from N_{k-1} up to N_k: their last token lies in shard k. In epoch 0
// a run reads generation after generation. Within a generation, a permutation keyed with seed and k
// gives the order. From epoch 1 on all text has arrived, and a permutation of all samples gives the
// order, as in SampleOrder. So sequence g is a function of seed, S and the shards' sizes only. A
// run that had to wait reads the same as a run that began when all text had arrived.
#pragma once

#include "worker/data/sample_order.h"

#include <vector>

namespace nsa::data {

class FollowOrder {
public:
  FollowOrder(int64_t sequence_length, uint64_t seed)
      : sequence_length_(sequence_length), seed_(seed) {}

  // Adds the next generation: a shard of `tokens` tokens.
  void add(int64_t tokens);
  // Says that no generation will follow. At least one sample must exist by then.
  void complete() { complete_ = true; }

  bool is_complete() const { return complete_; }
  int64_t samples() const { return ends_.empty() ? 0 : ends_.back(); }
  size_t generations() const { return ends_.size(); }
  // Returns whether the text of the first `count` sequences has arrived.
  bool has(int64_t count) const { return count <= samples() || complete_; }
  // The text of `sequence` must have arrived.
  SequenceAddress at(int64_t sequence) const;
  // Returns the number of generations that the first `count` sequences come from; at least one.
  size_t read_by(int64_t count) const;

private:
  int64_t sequence_length_;
  uint64_t seed_;
  int64_t tokens_ = 0;
  bool complete_ = false;
  std::vector<int64_t> ends_; // N_k
};

} // namespace nsa::data
