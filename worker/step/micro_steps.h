// MicroSteps: forward and backward passes of a step's micro-batches into gradient sums and the loss
// word. Launched one by one, or recorded as graphs (toggle cuda.graphs) and replayed: a graph is a
// part of a step in which only the device has something to do. Between graphs the host marks where
// it is and starts the buckets of gradients that are ready.
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

// A step could not be recorded. Some of it may have run, and buckets of it may have gone to the
// peers, so that it cannot be done again: what is left of it, the stream included, goes with the
// process.
class RecordingError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class MicroSteps {
public:
  struct Parts {
    runtime::Runtime& runtime;
    GradientReducer& reducer;
    at::Tensor loss_word; // FP32 scalar in place, which every micro-batch's share is added to
    BatchLoss loss;
    // Set: steps are recorded, once the first ones have been launched one by one. Those make what
    // must not be made while recording: cuBLASLt's timed choices, workspaces, RoPE tables.
    std::optional<StagedLoss> staged = std::nullopt;
  };
  // `loss_scale` makes the sum over micro-steps and ranks a mean.
  MicroSteps(Parts parts, double loss_scale);

  struct MicroStep {
    bool first = true, last = true; // of its step
    bool poisoned = false;          // for fault injection: the loss is NaN. Never replayed
  };
  // One micro-step; the step has begun in the reducer. `at_backward` is called when the host gets
  // to the backward pass; what it enqueues runs between the two passes. Throws what the passes
  // throw, and RecordingError where recording fails.
  void run(const std::shared_ptr<const data::Batch>& batch, MicroStep micro_step,
           const std::function<void()>& at_backward);

  size_t graphs() const; // recorded so far

private:
  // Gradients are written by a step's first micro-step and added by others, and the last one starts
  // buckets: their tapes differ.
  using FirstAndLast = std::pair<bool, bool>;
  struct Recording {
    Tape tape;
    std::vector<bool> seen; // parameters that its backward pass has gradients for
  };
  void pass(const at::Tensor& unscaled, MicroStep micro_step, Tape* tape);
  void record(Recording& recording, MicroStep micro_step);
  bool replayable(const data::Batch& batch, MicroStep micro_step);

  Parts p_;
  const double loss_scale_;
  std::function<void()> at_backward_; // of the micro-step under way
  std::pair<int64_t, int64_t> shape_{0, 0};
  int64_t steps_of_shape_ = 0;
  std::unique_ptr<runtime::Recorder> recorder_;
  std::map<FirstAndLast, Recording> recordings_; // gone before the recorder
};

} // namespace nsa::train
