// MicroSteps runs the forward and backward passes of a step's micro-batches. It adds gradients to
// their sums and losses to the loss word. It launches kernels one by one, or captures them as
// graphs (toggle cuda.graphs) and replays these. A graph is a part of a step in which only the
// device has work. Between graphs the host marks its position and starts the gradient buckets that
// are ready.
//
// Training thread only.
#pragma once

#include "worker/graphs/tape.h"
#include "worker/runtime/runtime.h"
#include "worker/step/batch_loss.h"
#include "worker/step/gradient_reducer.h"

#include <map>
#include <optional>
#include <stdexcept>

namespace nsa::train {

// A step could not be captured. Parts of it may have run, and some of its buckets may have been
// sent to peers, so it cannot be repeated. The process must end, because the stream may be
// unusable.
class RecordingError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class MicroSteps {
public:
  struct Parts {
    runtime::Runtime& runtime;
    GradientReducer& reducer;
    at::Tensor loss_word; // FP32 scalar at a fixed address; every micro-batch adds its part
    BatchLoss loss;
    // If set, steps are captured as graphs after the first ones were launched one by one. Those
    // first steps make what capture must not make: cuBLASLt's timed choices, workspaces, RoPE
    // tables.
    std::optional<StagedLoss> staged = std::nullopt;
  };
  // `loss_scale` turns the sum over micro-steps and ranks into a mean.
  MicroSteps(Parts parts, double loss_scale);

  struct MicroStep {
    bool first = true, last = true; // position in its step
    bool poisoned = false;          // for fault injection: the loss becomes NaN. Never replayed
  };
  // Runs one micro-step after begin_step() of the reducer. It calls `at_backward` when the host
  // reaches the backward pass; work that `at_backward` enqueues runs between the two passes. Throws
  // what the passes throw, and RecordingError if capture fails.
  void run(const std::shared_ptr<const data::Batch>& batch, MicroStep micro_step,
           const std::function<void()>& at_backward);

  size_t graphs() const; // number of graphs captured so far

private:
  // A step's first micro-step writes gradients, later ones add to them, and the last one starts
  // buckets. So their tapes differ.
  using FirstAndLast = std::pair<bool, bool>;
  struct Recording {
    Tape tape;
    GradientReducer::Arrived arrived; // gradients of this backward pass, in the graphs' memory
  };
  void pass(const at::Tensor& unscaled, MicroStep micro_step, Tape* tape);
  void record(Recording& recording, MicroStep micro_step);
  bool replayable(const data::Batch& batch, MicroStep micro_step);

  Parts p_;
  const double loss_scale_;
  std::function<void()> at_backward_; // callback of the current micro-step
  std::pair<int64_t, int64_t> shape_{0, 0};
  int64_t steps_of_shape_ = 0;
  std::unique_ptr<runtime::Recorder> recorder_;
  std::map<FirstAndLast, Recording> recordings_; // declared after the recorder, so destroyed before
                                                 // it
};

} // namespace nsa::train
