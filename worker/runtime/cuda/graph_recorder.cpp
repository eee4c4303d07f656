#include "worker/runtime/cuda/graph_recorder.h"

#include "common/base/log.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

namespace nsa::runtime {

namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDAStreamGuard;

class StreamGraph : public Graph {
public:
  StreamGraph(std::unique_ptr<at::cuda::CUDAGraph> graph, CUDAStream stream)
      : graph_(std::move(graph)), stream_(stream) {}
  void replay() override {
    const CUDAStreamGuard guard(stream_); // autograd's thread has one of its own
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

  // Relaxed: a recording may be ended by autograd's thread, which the stricter modes refuse, and
  // c10d's watchdog asks for its events and the loader pins memory meanwhile. Neither touches the
  // recorded stream.
  void begin() override {
    const CUDAStreamGuard guard(stream_);
    recording_ = std::make_unique<at::cuda::CUDAGraph>();
    recording_->capture_begin(pool_, cudaStreamCaptureModeRelaxed);
  }

  std::unique_ptr<Graph> end() override {
    const CUDAStreamGuard guard(stream_);
    auto ended = std::exchange(recording_, nullptr);
    ended->capture_end();
    return std::make_unique<StreamGraph>(std::move(ended), stream_);
  }

  void abandon() noexcept override {
    if (!recording_) return;
    try {
      (void)end();
    } catch (const std::exception& e) { // what went wrong before has spoiled the recording
      log::warning("runtime", std::string("a recording is dropped: ") + e.what());
    }
  }

private:
  CUDAStream stream_;
  at::cuda::MempoolId_t pool_;
  std::unique_ptr<at::cuda::CUDAGraph> recording_;
};

} // namespace

std::unique_ptr<Recorder> make_graph_recorder(CUDAStream stream) {
  return std::make_unique<StreamRecorder>(stream);
}

} // namespace nsa::runtime
