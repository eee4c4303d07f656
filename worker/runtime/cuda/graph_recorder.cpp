#include "worker/runtime/cuda/graph_recorder.h"

#include "common/base/log.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <unordered_set>

namespace nsa::runtime {

namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;

class StreamGraph : public Graph {
public:
  StreamGraph(std::unique_ptr<at::cuda::CUDAGraph> graph, CUDAStream stream)
      : graph_(std::move(graph)), stream_(stream) {}
  void replay() override {
    const CUDAStreamGuard guard(stream_); // autograd's thread has another current stream
    graph_->replay();
  }

private:
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
  CUDAStream stream_;
};

class StreamRecorder : public Recorder {
public:
  explicit StreamRecorder(CUDAStream stream)
      : stream_(stream), pool_(at::cuda::graph_pool_handle()) {}
  ~StreamRecorder() override { abandon(); }

  // The capture uses relaxed mode for two reasons. Autograd's thread may end the capture, which
  // stricter modes refuse. Meanwhile c10d's watchdog queries its events and the loader pins memory;
  // neither touches the captured stream.
  void begin() override {
    const CUDAStreamGuard guard(stream_);
    recording_ = std::make_unique<at::cuda::CUDAGraph>();
    known_.clear();
    recording_->capture_begin(pool_, cudaStreamCaptureModeRelaxed);
  }

  std::unique_ptr<Graph> end() override {
    const CUDAStreamGuard guard(stream_);
    auto ended = std::exchange(recording_, nullptr);
    ended->capture_end();
    return std::make_unique<StreamGraph>(std::move(ended), stream_);
  }

  bool names_kernels() const override { return true; }
  std::vector<std::string> take_launched() override {
    std::vector<std::string> names;
    for (const cudaGraphNode_t node : nodes()) {
      cudaGraphNodeType type{};
      if (!known_.insert(node).second || cudaGraphNodeGetType(node, &type) != cudaSuccess ||
          type != cudaGraphNodeTypeKernel)
        continue;
      names.push_back(name_of(node));
    }
    (void)cudaGetLastError(); // a kernel without a name must not fail training
    return names;
  }

  void abandon() noexcept override {
    if (!recording_) return;
    try {
      (void)end();
    } catch (const std::exception& e) { // an earlier error has invalidated the capture
      log::warning("runtime", std::string("a recording is dropped: ") + e.what());
    }
  }

private:
  std::vector<cudaGraphNode_t> nodes() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    size_t count = 0, waits = 0;
    // Without the edge data, the call fails for a graph with programmatic launches.
    const cudaGraphNode_t* dependencies = nullptr;
    const cudaGraphEdgeData* edges = nullptr;
    if (!recording_ ||
        cudaStreamGetCaptureInfo(stream_.stream(), &status, nullptr, &graph, &dependencies, &edges,
                                 &waits) != cudaSuccess ||
        status != cudaStreamCaptureStatusActive ||
        cudaGraphGetNodes(graph, nullptr, &count) != cudaSuccess)
      return {};
    std::vector<cudaGraphNode_t> nodes(count);
    if (count > 0 && cudaGraphGetNodes(graph, nodes.data(), &count) != cudaSuccess) return {};
    return nodes;
  }

  // Only kernels launched by the runtime API have a name here; cuBLAS uses the driver API.
  static std::string name_of(cudaGraphNode_t node) {
    cudaKernelNodeParams params{};
    const char* name = nullptr;
    if (cudaGraphKernelNodeGetParams(node, &params) != cudaSuccess ||
        cudaFuncGetName(&name, params.func) != cudaSuccess || name == nullptr)
      return "";
    return name;
  }

  CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
  std::unordered_set<cudaGraphNode_t> known_; // nodes of the capture that were already returned
  std::unique_ptr<at::cuda::CUDAGraph> recording_;
};

} // namespace

std::unique_ptr<Recorder> make_graph_recorder(CUDAStream stream) {
  return std::make_unique<StreamRecorder>(stream);
}

} // namespace nsa::runtime
