// The order of training over a data set that still grows (data.follow). Pure; the caller guards it.
//
// Let T_k be the tokens of the first k + 1 shards of the train split, and N_k = (T_k - 1) / S.
// Generation k has the samples from N_{k-1} up to N_k: their last token lies in shard k. In epoch 0
// a run reads generation after generation; within one, a permutation keyed with seed and k gives
// the order. From epoch 1 on all text is there, and a permutation of all samples gives the order,
// as SampleOrder's. So sequence g is a function of seed, S and the shards' sizes alone: a run that
// had to wait reads what a run reads that began when everything was there.
#pragma once

#include "worker/data/sample_order.h"

#include <vector>

namespace nsa::data {

class FollowOrder {
public:
  FollowOrder(int64_t sequence_length, uint64_t seed)
      : sequence_length_(sequence_length), seed_(seed) {}

  // The next generation, of a shard with so many tokens.
  void add(int64_t tokens);
  // No generation will follow. There must be a sample by then.
  void complete() { complete_ = true; }

  bool is_complete() const { return complete_; }
  int64_t samples() const { return ends_.empty() ? 0 : ends_.back(); }
  size_t generations() const { return ends_.size(); }
  // Whether the text of the first `count` sequences is there.
  bool has(int64_t count) const { return count <= samples() || complete_; }
  // Of a sequence that is there.
  SequenceAddress at(int64_t sequence) const;
  // How many generations the first `count` sequences were read from; at least one.
  size_t read_by(int64_t count) const;

private:
  int64_t sequence_length_;
  uint64_t seed_;
  int64_t tokens_ = 0;
  bool complete_ = false;
  std::vector<int64_t> ends_; // N_k
};

} // namespace nsa::data
