// Graphs of one stream, by LibTorch's CUDAGraph. LibTorch's allocator gives captured work memory
// from a separate pool.
#pragma once

#include "worker/graphs/graph.h"

#include <c10/cuda/CUDAStream.h>

namespace nsa::runtime {

std::unique_ptr<Recorder> make_graph_recorder(c10::cuda::CUDAStream stream);

} // namespace nsa::runtime
