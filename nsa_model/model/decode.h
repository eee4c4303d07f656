// Key/value caches of a decoding run. Holds what later tokens need and no more: all selected keys,
// the window's last w - 1, the compressed tokens, and the raw keys of the compression block that is
// not yet whole.
//
// Made by LanguageModel::start_decoding(); one thread at a time.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <vector>

namespace nsa::model {

struct LayerCache {
  std::array<at::Tensor, 3> k, v; // compressed [B, Nc, G, D]; selected, sliding [B, K, G, D]
  at::Tensor tail_k, tail_v;      // raw, from the first token of the next compressed token on
};

class DecodeState {
public:
  int64_t batch() const { return batch_; }
  int64_t length() const { return length_; } // tokens seen

private:
  friend class LanguageModel;
  int64_t batch_ = 0, length_ = 0, capacity_ = 0;
  std::vector<LayerCache> layers_;
};

} // namespace nsa::model
