// One decoding step of a layer's attention, for the newest token t of a sequence and a KV group:
//
//   o = g_cmp softmax(q K~^T) V~ + g_sel softmax(q K_sel^T) V_sel + g_win softmax(q K_win^T) V_win
//
// It covers the compressed keys that t sees, the keys of 16 selected blocks and the last 512 keys
// (Eq. 5). Blocks are scored by the compressed probabilities (Eq. 8 to 12).
//
// A KV head is one sequence and KV group. Its 1 to 16 heads are the rows of every product, so each
// key is read once (warp_attention.cuh). A warp processes 32 keys a step. A cluster of 1 to 16 CTAs
// processes a KV head; with few KV heads, clusters are larger. The CTAs merge their warps' results
// through their shared memory. There is one launch. It writes only the result to global memory, and
// the block sums of very long caches. Before Hopper a cluster is one CTA. With nearly as many KV
// heads as multiprocessors, each CTA has a multiprocessor to itself (alone.cuh).
//
// step  half of the warps (choosers)            the other half
// ----  --------------------------------------  ---------------------------------------------------
// 1     their steps of the compressed keys      the same; each step stores its blocks' sums of
//                                               probabilities
// 2     scores of the CTA's blocks; the best    the window and the three forced blocks
//       13 go to every CTA                      (alone: choosers do the latter after step 3)
// 3     the best 13 of all lists; one CTA has   (continued)
//       none and takes its own best
// 4     steps of the chosen blocks              the same (alone: 8 of 26 steps)
// 5     the warps' results of each branch are merged; each CTA gets some dimensions of all of them
// 6     await_cluster(); each CTA writes its dimensions, multiplied by the gates
//
// signal           after  who arrives                            what it protects
// ---------------  -----  -------------------------------------  -------------------------------
// compressed_done  1      every warp of the cluster, at every    sums of the compressed branch
//                         CTA
// lists_done       2      every chooser of the cluster, at       the lists of best blocks (not used
//                         every CTA                              with one CTA)
// blocks_taken     3      the CTA's choosers                     `taken`, the 13 blocks
// results_done     5      every warp of the cluster, at every    the results of the CTA's
//                         CTA                                    dimensions
//
// Each signal is awaited once a launch. A CTA writes to another's shared memory only after all CTAs
// have started (await_cluster) and before all synchronise at the end. So the target exists.
//
// A step's block sums are relative to that step's reference, which is an integer, so merging them
// does not round. A block's first row also belongs to the block before, which may be of another
// step or CTA. The last word of a step's sums, and `before`, hold it.

#include "nsa_model/kernels/decode/decode.h"

#include "nsa_model/kernels/decode/alone.cuh"

#include <algorithm>

namespace nsa::kernels {
namespace decode {
namespace {

template <int kHalves, bool kAlone>
__global__ void __launch_bounds__(Tile::kThreads<kHalves>, kAlone ? 1 : Tile::kResident)
    decode_kernel(const __grid_constant__ DecodeParams step) {
  extern __shared__ float4 raw[];
  auto& shared = *reinterpret_cast<Shared<kHalves>*>(raw);
  if constexpr (kAlone)
    decode_alone(step, static_cast<int>(blockIdx.x), shared);
  else
    decode_cta<kHalves>(step, static_cast<int>(blockIdx.x), shared);
}

template <int kHalves, bool kAlone>
cudaError_t launch(const DecodeParams& step, cudaStream_t stream) {
  Device device;
  cudaError_t error = current_device(device);
  if (error != cudaSuccess) return error;
  if (step.plan.ctas() > device.most_ctas) return cudaErrorInvalidValue;
  const auto set = [&](cudaFuncAttribute attribute, int value) {
    if (error == cudaSuccess)
      error = cudaFuncSetAttribute(decode_kernel<kHalves, kAlone>, attribute, value);
  };
  // The values do not depend on the step, so threads may launch at the same time.
  set(cudaFuncAttributeMaxDynamicSharedMemorySize,
      static_cast<int>(kAlone ? device.alone_bytes : device.shared_bytes));
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
  config.numAttrs = device.most_ctas > 1 && !kAlone ? 1 : 0;
  return cudaLaunchKernelEx(&config, decode_kernel<kHalves, kAlone>, step);
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
  // A partition of a GPU (MIG) has fewer multiprocessors for a cluster.
  if (device.multiprocessors < 100)
    device.most_ctas = std::min(device.most_ctas, Tile::kPortableCtas);
  constexpr int kReserved = 1024; // reserved bytes of each CTA
  const int a_cta = ask(cudaDevAttrMaxSharedMemoryPerMultiprocessor) / Tile::kResident - kReserved;
  const int least = static_cast<int>(std::max(sizeof(Shared<1>), sizeof(Shared<2>)));
  const int most = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  device.shared_bytes = static_cast<std::size_t>(std::min(std::max(a_cta, least), most));
  device.alone_bytes = static_cast<std::size_t>(most);
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
  if (params.heads > decode::kHalfHeads) return decode::launch<2, false>(params, stream);
  return params.plan.alone ? decode::launch<1, true>(params, stream)
                           : decode::launch<1, false>(params, stream);
}

} // namespace nsa::kernels
