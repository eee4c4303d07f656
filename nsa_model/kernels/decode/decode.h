#pragma once
// Attention of one new token a sequence over key/value caches: all three branches and their gates,
// in one launch for a layer of a decoding step. Sequences have their own lengths, which are read on
// the device. Deterministic for a given plan.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "nsa_model/kernels/decode/plan.h"

#include <cstdint>

namespace nsa::kernels {

struct DecodeParams {
  int batch = 0;
  int groups = 0;
  int heads = kHeadsPerGroup; // query heads a group, 1 to 16
  int gates_of_token = 0;     // groups, or groups * heads
  int tokens = 0;             // rows of the selected cache: tokens of the longest sequence
  int compressed_rows = 0;    // rows of the compressed cache; at least compressed_count(tokens)
  int window_rows = 0;  // rows of the window cache; at least the smaller of the window and `tokens`
  float scale = 0.125f; // factor of q . k
  // q, caches, out and workspace must be aligned to 16 bytes; check_decode tests this.
  const __nv_bfloat16* q;            // [batch, groups * heads, 64], queries of the newest token
  const float* gates;                // [batch, gates_of_token, 3]: compressed, selected, window
  const __nv_bfloat16* k_compressed; // [batch, groups, compressed_rows, 64]
  const __nv_bfloat16* v_compressed;
  const __nv_bfloat16* k_selected; // [batch, groups, tokens, 64]
  const __nv_bfloat16* v_selected;
  const __nv_bfloat16* k_window; // [batch, groups, window_rows, 64]; position p in row p % rows
  const __nv_bfloat16* v_window;
  const int32_t* lengths; // [batch], tokens including the newest; the caches already hold its keys
  __nv_bfloat16* out;     // [batch, groups * heads, 64]
  int32_t* indices;       // [batch, groups, 16]: the selected blocks, ascending, then -1
  void* workspace;        // decode_workspace_bytes(), aligned to 16 bytes, any content
  decode::Plan plan;
};

// A longer cache would have more steps than the tests cover.
inline constexpr int kMostDecodeTokens = 1 << 19;

namespace decode {
// Returns the properties of the current device that these kernels need.
cudaError_t current_device(Device& device);
} // namespace decode

// The plan for the current device. `kv_heads`: batch times groups; `heads`: heads of a group.
decode::Plan plan_decode(int kv_heads, int heads, int tokens);
// Bytes for block sums that do not fit shared memory; usually 0.
std::size_t decode_workspace_bytes(const decode::Plan& plan, int kv_heads, int heads, int tokens);

// Checks the arguments of launch_decode without a device. q, out, caches and workspace are accessed
// 16 bytes at a time, so other addresses return cudaErrorMisalignedAddress. Unsupported sizes, and
// caches with too few rows, return cudaErrorInvalidValue.
cudaError_t check_decode(const DecodeParams& params);
cudaError_t launch_decode(const DecodeParams& params, cudaStream_t stream);

} // namespace nsa::kernels
