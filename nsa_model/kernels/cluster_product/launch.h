#pragma once
// Starts a product of clusters. Host code.

#include <cuda_runtime.h>

#include "nsa_model/kernels/cluster_product/config.h"
#include "nsa_model/kernels/common/tensor_map.h"

namespace nsa::kernels::cluster_product {

// Descriptor of a K-major operand [rows, inner], in boxes of `box_rows` rows of one step.
inline cudaError_t make_operand_map(CUtensorMap* map, const __nv_bfloat16* operand, int rows,
                                    int inner, int box_rows) {
  // A step is like a head of 64 dimensions.
  return make_token_major_map(map, operand, 1, rows, inner / Tile::kDepth, box_rows, 1);
}

// A launch of a kernel with clusters. It refers to itself, so it must not be moved or copied.
struct ClusterLaunch {
  cudaLaunchAttribute attribute = {};
  cudaLaunchConfig_t config = {};

  ClusterLaunch() = default;
  ClusterLaunch(const ClusterLaunch&) = delete;
  ClusterLaunch& operator=(const ClusterLaunch&) = delete;

  // `room` is a static variable for each kernel. It gets the number of clusters that are resident
  // at once; one more would run alone after all others. Assumes that all GPUs of a host are equal;
  // a race writes the same value twice.
  template <typename... Parameters>
  cudaError_t prepare(void (*kernel)(Parameters...), int shared_bytes, cudaStream_t stream,
                      int& room) {
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = Tile::kCluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.blockDim = dim3(Tile::kThreads);
    config.dynamicSmemBytes = static_cast<std::size_t>(shared_bytes);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    config.gridDim =
        dim3(static_cast<unsigned>(multiprocessor_count() / Tile::kCluster * Tile::kCluster));
    if (room != 0) return cudaSuccess;
    int clusters = 0;
    error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    if (error != cudaSuccess) return error;
    if (clusters < 1) return cudaErrorInvalidConfiguration;
    room = clusters;
    return cudaSuccess;
  }
  template <typename... Parameters, typename... Arguments>
  cudaError_t start(void (*kernel)(Parameters...), int clusters, const Arguments&... arguments) {
    config.gridDim = dim3(static_cast<unsigned>(clusters * Tile::kCluster));
    return cudaLaunchKernelEx(&config, kernel, arguments...);
  }
};

} // namespace nsa::kernels::cluster_product
