// One decoding step of a layer's attention: for the newest token t of a sequence and a KV group
//
//   o = g_cmp softmax(q K~^T) V~ + g_sel softmax(q K_sel^T) V_sel + g_win softmax(q K_win^T) V_win
//
// over the compressed keys that t sees, the keys of 16 selected blocks and the last 512 keys
// (Eq. 5). Blocks are scored by the compressed probabilities (Eq. 8 to 12).
//
// A kv head is one sequence and KV group. Its 1 to 16 heads are the rows of every product, so that
// each key is read once (warp_attention.cuh). A warp takes 32 keys a step; a piece is a CTA's share
// of a kv head's keys. A partial result is (reference, sum, O): sums of 2^(score - reference).
//
// launch             CTAs                              writes
// -----------------  --------------------------------  ------------------------------------------
// first_kernel       compressed pieces, kv head by     partial results; of each compressed step
//                    kv head; then window pieces       the blocks' sums of probabilities
//   its last arrival of a kv head's compressed pieces  the kv head's 16 blocks
// second_kernel      selected pieces, and one that     partial results; the joined one of the
//                    joins the compressed ones         compressed branch
//   its last arrival of a kv head                         out
//
// Who arrives last reads what the others wrote: they fence before they count, and it fences behind
// its own count. It leaves the count at 0 for the next step. Selections of the first kv heads run
// while later kv heads' keys are read; window pieces fill up the end.
//
// A step's block sums are relative to that step's reference, a whole number, so that joining them
// rounds nothing. A block's first row belongs to the block before as well, which may be of another
// step: last_probability has it.

#include "nsa_model/kernels/decode/decode.h"

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/decode/ctas.cuh"

namespace nsa::kernels {
namespace decode {
namespace {

template <int kHalves>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    first_kernel(const __grid_constant__ Work work) {
  wait_for_earlier_kernels();
  extern __shared__ float4 raw[];
  __shared__ Shared shared;
  first_cta<kHalves>(work, static_cast<int>(blockIdx.x), raw, shared);
}

template <int kHalves>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    second_kernel(const __grid_constant__ Work work) {
  wait_for_earlier_kernels();
  extern __shared__ float4 raw[];
  __shared__ Shared shared;
  second_cta<kHalves>(work, static_cast<int>(blockIdx.x), raw, shared);
}

// A launch whose CTAs may take their places while the kernel before still runs.
cudaError_t launch_behind(void (*function)(Work), int ctas, std::size_t shared_bytes,
                          const Work& work, cudaStream_t stream) {
  int device = 0;
  int major = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  if (const cudaError_t error =
          cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
      error != cudaSuccess)
    return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(ctas));
  config.blockDim = dim3(Tile::kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelEx(&config, function, work);
}

template <int kHalves> cudaError_t launch(const Work& work, cudaStream_t stream) {
  const DecodeParams& step = work.step;
  const int kv_heads = step.batch * step.groups;
  first_kernel<kHalves><<<static_cast<unsigned>(kv_heads * step.plan.first_selected()),
                          Tile::kThreads, first_raw_bytes<kHalves>(step.tokens), stream>>>(work);
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  return launch_behind(second_kernel<kHalves>, kv_heads * (step.plan.selected_pieces + 1),
                       second_raw_bytes<kHalves>(), work, stream);
}

} // namespace
} // namespace decode

decode::Plan plan_decode(int kv_heads, int tokens) {
  int device = 0;
  int multiprocessors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  return decode::make_plan(kv_heads, tokens, multiprocessors);
}

std::size_t decode_workspace_bytes(const decode::Plan& plan, int kv_heads, int heads, int tokens) {
  return decode::make_workspace(plan, kv_heads, heads, tokens).bytes;
}

cudaError_t launch_decode(const DecodeParams& params, cudaStream_t stream) {
  if (const cudaError_t error = check_decode(params); error != cudaSuccess) return error;
  const decode::Work work = decode::work_of(params);
  return params.heads <= 8 ? decode::launch<1>(work, stream) : decode::launch<2>(work, stream);
}

} // namespace nsa::kernels
