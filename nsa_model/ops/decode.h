// Attention of one decoding step over key/value caches: all branches and gates for the newest token
// of each sequence. torch.ops.nsa.decode_attention (docs/operators.md). No gradients.
//
// Thread-safe. Wrong shapes, dtypes or devices throw c10::Error.
#pragma once

#include "nsa_model/ops/attention.h"

namespace nsa::ops {

struct DecodeInputs {
  at::Tensor q; // [B, 1, H, D]
  // Contiguous caches [B, G, rows, D] of the compressed, selected and sliding keys; absent if the
  // branch is off. They already contain the newest token, and the compressed tokens that it sees.
  // The compressed cache has a row for each compressed token, the selected one a row for each
  // token. The sliding cache stores position p in row p % rows. It has as many rows as the window
  // or as the longest sequence.
  std::array<OptionalTensor, 3> k, v;
  at::Tensor gates;   // [B, 1, H or G, 3]
  at::Tensor lengths; // int32 [B]: tokens of each sequence, including the newest
};

// The result has the shape of q. kAten runs on any device and reads `lengths` on the host, so keep
// them on the CPU. kFused (nsa_model/kernels/decode) needs `lengths` on the device and never waits
// for it. Throws if the kernels are not available.
at::Tensor decode_attention(const DecodeInputs& inputs, const Settings& settings, Kernels kernels);

// Calls the kernels; returns the result and the selected blocks int32 [B, G, 16].
std::tuple<at::Tensor, at::Tensor> fused_decode(const DecodeInputs& inputs, double scale);

} // namespace nsa::ops
