#include "nsa_model/kernels/fused/run_schedule.h"

#include "nsa_model/kernels/fused/side_stream.h"

namespace nsa::kernels {
namespace {

// The event of a wait is recorded when the wait is enqueued, because the node that it names is then
// the newest of its stream.
cudaError_t enqueue_waits(const Node& node, SideFork& side, cudaStream_t main) {
  for (const Wait& wait : node.waits) {
    const bool on_side = node.stream == Stream::kSide;
    cudaError_t error;
    if (wait.until == Until::kLaunched) {
      error = cudaStreamWaitEvent(on_side ? side.side().stream : main, side.side().launched);
    } else {
      error = on_side ? side.fork(main) : side.join();
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

} // namespace

cudaError_t run_schedule(const Schedule& schedule, const LaunchNode& launch,
                         const std::function<void()>& begin_lists, cudaStream_t stream) {
  SideFork side;
  for (std::size_t i = 0; i < schedule.nodes.size(); ++i) {
    const Node& node = schedule.nodes[i];
    if (static_cast<int>(i) == schedule.lists_begin) begin_lists();
    cudaError_t error = enqueue_waits(node, side, stream);
    if (error == cudaSuccess && node.kernel != Kernel::kWait) {
      error = launch(node, node.stream == Stream::kSide ? side.side().stream : stream,
                     node.tells_launch ? side.side().launched : nullptr);
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

} // namespace nsa::kernels
