// One decoding step of a layer's attention: for the newest token t of a sequence and a KV group
//
//   o = g_cmp softmax(q K~^T) V~ + g_sel softmax(q K_sel^T) V_sel + g_win softmax(q K_win^T) V_win
//
// over the compressed keys that t sees, the keys of 16 selected blocks and the last 512 keys
// (Eq. 5). Blocks are scored by the compressed probabilities (Eq. 8 to 12).
//
// A kv head is one sequence and KV group. Its 1 to 16 heads are the rows of every product, so that
// each key is read once (warp_attention.cuh). A warp takes 32 keys a step. A kv head is served by a
// cluster of 1 to 16 CTAs, more for few kv heads; what their warps have of it is joined through
// their shared memory. One launch, and nothing in global memory but the result (and the block sums
// of very long caches). Before Hopper a cluster is one CTA.
//
// half of the warps (choosers)          the other half               signal between them
// ------------------------------------  --------------------------- -------------------------------
// their steps of the compressed keys, of which each leaves its blocks' sums of probabilities
//                                                                    compressed_done: every warp of
//                                                                    the cluster, at every CTA
// scores of the CTA's blocks, the best  the window, the three        lists_done: every chooser of
// the 13 of them to every CTA; the 13 best  forced blocks                cluster, at every CTA of
// all lists                                                       blocks_taken: the CTA's choosers
// the chosen blocks' steps
// the warps' results of each branch are joined; each CTA gets some dimensions of all of them
// await_cluster(); each CTA writes its dimensions under the gates
//
// Each signal is awaited once a launch. A CTA writes into another's shared memory only after all
// have begun (await_cluster) and before all meet at the end, so that all are there.
//
// A step's block sums are relative to that step's reference, a whole number, so that joining them
// rounds nothing. A block's first row belongs to the block before as well, which may be of another
// step or CTA: the last word of a step's sums, and `before`, have it.

#include "nsa_model/kernels/decode/decode.h"

#include "nsa_model/kernels/decode/cta.cuh"

#include <algorithm>

namespace nsa::kernels {
namespace decode {
namespace {

template <int kHalves>
__global__ void __launch_bounds__(Tile::kThreads<kHalves>, Tile::kResident)
    decode_kernel(const __grid_constant__ DecodeParams step) {
  extern __shared__ float4 raw[];
  decode_cta<kHalves>(step, static_cast<int>(blockIdx.x), *reinterpret_cast<Shared<kHalves>*>(raw));
}

template <int kHalves> cudaError_t launch(const DecodeParams& step, cudaStream_t stream) {
  Device device;
  cudaError_t error = current_device(device);
  if (error != cudaSuccess) return error;
  if (step.plan.ctas() > device.most_ctas) return cudaErrorInvalidValue;
  const auto set = [&](cudaFuncAttribute attribute, int value) {
    if (error == cudaSuccess)
      error = cudaFuncSetAttribute(decode_kernel<kHalves>, attribute, value);
  };
  // The same values whatever the step, for threads that launch at the same time.
  set(cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(device.shared_bytes));
  if (device.most_ctas > Tile::kPortableCtas)
    set(cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(step.plan.ctas());
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(step.batch * step.groups * step.plan.ctas()));
  config.blockDim = dim3(Tile::kThreads<kHalves>);
  config.dynamicSmemBytes = shared_bytes<kHalves>(step.plan, step.heads, step.tokens);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = device.most_ctas > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, decode_kernel<kHalves>, step);
}

} // namespace

cudaError_t current_device(Device& device) {
  int ordinal = 0;
  cudaError_t error = cudaGetDevice(&ordinal);
  const auto ask = [&](cudaDeviceAttr attribute) {
    int value = 0;
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, ordinal);
    return value;
  };
  device.multiprocessors = ask(cudaDevAttrMultiProcessorCount);
  device.most_ctas = ask(cudaDevAttrComputeCapabilityMajor) >= kClustersSince ? Tile::kMostCtas : 1;
  // Parts of a GPU have fewer multiprocessors that a cluster may lie on.
  if (device.multiprocessors < 100)
    device.most_ctas = std::min(device.most_ctas, Tile::kPortableCtas);
  constexpr int kReserved = 1024; // of each CTA
  const int a_cta = ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / Tile::kResident - kReserved;
  const int least = static_cast<int>(std::max(sizeof(Shared<1>), sizeof(Shared<2>)));
  device.shared_bytes = static_cast<std::size_t>(
      std::min(std::max(a_cta, least), ask(cudaDevAttrMaxSharedMemoryPerBlockOptin)));
  return error;
}

} // namespace decode

decode::Plan plan_decode(int kv_heads, int heads, int tokens) {
  decode::Device device;
  decode::current_device(device);
  return decode::make_plan(
      kv_heads, heads, tokens,
      heads <= decode::kHalfHeads ? sizeof(decode::Shared<1>) : sizeof(decode::Shared<2>), device);
}

std::size_t decode_workspace_bytes(const decode::Plan& plan, int kv_heads, int heads, int tokens) {
  return decode::workspace_bytes(plan, kv_heads, heads, tokens);
}

cudaError_t launch_decode(const DecodeParams& params, cudaStream_t stream) {
  if (const cudaError_t error = check_decode(params); error != cudaSuccess) return error;
  return params.heads <= decode::kHalfHeads ? decode::launch<1>(params, stream)
                                            : decode::launch<2>(params, stream);
}

} // namespace nsa::kernels
