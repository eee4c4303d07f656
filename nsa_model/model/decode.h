// Key/value caches of a decoding run. Holds what later tokens need and no more: all selected keys,
// the window's last w, the compressed tokens, and the raw keys of the compression block that is not
// yet whole. Room for `capacity` tokens is taken at the start.
//
// Made by LanguageModel::start_decoding(); one thread at a time.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <vector>

namespace nsa::model {

struct LayerCache {
  // Compressed, selected, sliding: [B, G, rows, D], as ops::DecodeInputs has them; undefined where
  // a branch is off. The dense twin's in [0].
  std::array<at::Tensor, 3> k, v;
  at::Tensor tail_k, tail_v; // raw [B, n, G, D], from the next compressed token's first token on
};

class DecodeState {
public:
  int64_t batch() const { return batch_; }
  int64_t length() const { return length_; } // tokens seen

private:
  friend class LanguageModel;
  int64_t batch_ = 0, length_ = 0, capacity_ = 0;
  bool fused_ = false; // steps of one token by nsa_model/kernels/decode
  at::Tensor lengths_; // int32 [B], length_ in a step of one token; where the step reads them
  std::vector<LayerCache> layers_;
};

} // namespace nsa::model
