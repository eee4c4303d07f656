// Attention of one decoding step over key/value caches: all branches and gates for the newest token
// of each sequence. torch.ops.nsa.decode_attention (docs/operators.md). No gradients.
//
// Thread-safe. Wrong shapes, dtypes or devices throw c10::Error.
#pragma once

#include "nsa_model/ops/attention.h"

namespace nsa::ops {

struct DecodeInputs {
  at::Tensor q; // [B, 1, H, D]
  // Caches [B, G, rows, D], contiguous, of compressed, selected and sliding keys: with the newest
  // token's, and the compressed ones that it sees. A row a compressed token; a row a token;
  // position p in row p % rows, with as many rows as the window has, or as the longest sequence.
  // Absent: branch off.
  std::array<OptionalTensor, 3> k, v;
  at::Tensor gates;   // [B, 1, H or G, 3]
  at::Tensor lengths; // int32 [B]: tokens of each sequence, the newest included
};

// Like q. kAten: any device; reads lengths on the host, so keep them on the CPU. kFused:
// nsa_model/kernels/decode; lengths on the device, nothing waits. What cannot be had is refused.
at::Tensor decode_attention(const DecodeInputs& inputs, const Settings& settings, Kernels kernels);

// The kernels' own: the result, and the selected blocks int32 [B, G, 16].
std::tuple<at::Tensor, at::Tensor> fused_decode(const DecodeInputs& inputs, double scale);

} // namespace nsa::ops
