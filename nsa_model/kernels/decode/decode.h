#pragma once
// Attention of one new token a sequence over key/value caches, all three branches and their gates:
// what decoding does in a layer, in one launch. Sequences have lengths of their own, which are read
// on the device. Deterministic for a given plan.

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
  int tokens = 0;             // rows of the selected cache: the longest sequence
  int compressed_rows = 0;    // of its cache; compressed_count(tokens) at least
  int window_rows = 0;        // of its cache; the window or `tokens`, whichever is less, at least
  float scale = 0.125f;       // of q . k
  // q, caches, out and workspace begin at multiples of 16 bytes, as check_decode says.
  const __nv_bfloat16* q;            // [batch, groups * heads, 64], of the newest token
  const float* gates;                // [batch, gates_of_token, 3]: compressed, selected, window
  const __nv_bfloat16* k_compressed; // [batch, groups, compressed_rows, 64]
  const __nv_bfloat16* v_compressed;
  const __nv_bfloat16* k_selected; // [batch, groups, tokens, 64]
  const __nv_bfloat16* v_selected;
  const __nv_bfloat16* k_window; // [batch, groups, window_rows, 64]; position p in row p % rows
  const __nv_bfloat16* v_window;
  const int32_t* lengths; // [batch], tokens with the newest one; the caches hold its keys already
  __nv_bfloat16* out;     // [batch, groups * heads, 64]
  int32_t* indices;       // [batch, groups, 16]: the selected blocks, ascending, -1 behind the last
  void* workspace;        // decode_workspace_bytes(), aligned to 16 bytes, any content
  decode::Plan plan;
};

// A longer cache's steps would be too many for the tests that count them.
inline constexpr int kMostDecodeTokens = 1 << 19;

namespace decode {
// Of the current device; how it serves these kernels.
cudaError_t current_device(Device& device);
} // namespace decode

// On the current device. `kv_heads`: batch times groups; `heads`: of a group.
decode::Plan plan_decode(int kv_heads, int heads, int tokens);
// Mostly 0: block sums that shared memory has no room for.
std::size_t decode_workspace_bytes(const decode::Plan& plan, int kv_heads, int heads, int tokens);

// What launch_decode refuses; asks no device. q, out, caches and workspace are read and written 16
// bytes at a time: cudaErrorMisalignedAddress for another address. cudaErrorInvalidValue for sizes
// that are not served, and caches with too few rows.
cudaError_t check_decode(const DecodeParams& params);
cudaError_t launch_decode(const DecodeParams& params, cudaStream_t stream);

} // namespace nsa::kernels
