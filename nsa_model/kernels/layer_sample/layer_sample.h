#pragma once
// Copies some rows of the selected blocks of several layers, for the figures of the selection.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace nsa::kernels {

inline constexpr int kSampledAtOnce = 64; // layers

struct LayerSampleParams {
  int layers = 0;      // at most kSampledAtOnce
  int rows = 0;        // of a layer's sample
  int width = 0;       // values of a row, a multiple of 4
  const int64_t* from; // [rows], row of a layer's blocks for each row of its sample
  const int32_t* blocks[kSampledAtOnce]; // of each layer [.., width], aligned to 16 bytes
  int32_t* sample[kSampledAtOnce];       // [rows, width], the same
};
cudaError_t launch_layer_sample(const LayerSampleParams& params, cudaStream_t stream);

} // namespace nsa::kernels
