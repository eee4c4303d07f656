// Key/value caches of a decoding run. They hold only what later tokens need: all selected keys, the
// last w keys of the window, the compressed tokens, and the raw keys of the incomplete compression
// block. Memory for `capacity` tokens is allocated at the start.
//
// LanguageModel::start_decoding() makes it. One thread may use it at a time.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <vector>

namespace nsa::model {

struct LayerCache {
  // Compressed, selected, sliding: [B, G, rows, D], laid out as for ops::DecodeInputs; undefined if
  // a branch is off. The dense twin uses [0].
  std::array<at::Tensor, 3> k, v;
  // raw [B, n, G, D], starting at the first token of the next compressed token
  at::Tensor tail_k, tail_v;
};

class DecodeState {
public:
  int64_t batch() const { return batch_; }
  int64_t length() const { return length_; } // tokens seen

private:
  friend class LanguageModel;
  int64_t batch_ = 0, length_ = 0, capacity_ = 0;
  bool fused_ = false; // nsa_model/kernels/decode computes steps of one token
  // int32 [B], equal to length_ in a step of one token; placed on the device that reads them
  at::Tensor lengths_;
  std::vector<LayerCache> layers_;
};

} // namespace nsa::model
