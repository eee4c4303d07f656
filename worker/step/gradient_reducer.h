// GradientReducer: FP32 accumulation of gradients over the micro-steps of a step, and their sum
// over all ranks, bucket by bucket, begun while the last backward pass still runs. Where each rank
// updates a shard of the parameters it gets the sums of that shard alone.
//
// Training thread only; hooks run inside backward() (on a GPU on autograd's thread for that device,
// while the training thread waits in backward()).
#pragma once

#include "worker/comm/collectives.h"
#include "worker/optimizer/flat_state.h"
#include "worker/runtime/stopwatch.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace nsa::train {

struct ReducerOptions {
  // Element type of gradients on the wire; undefined: FP32. The sync scalars always travel in FP32.
  std::optional<at::ScalarType> compress;
  bool find_unused = false;  // parameters without a gradient are allowed, and count as zero
  bool static_graph = false; // the same parameters get gradients in every step
  // Keep narrow gradients until all of their bucket are there and add them at once, the first time
  // by writing. Unset: where the device has a kernel for it.
  std::optional<bool> defer;
  // Where a step is one micro-step of one rank, on a device with kernels for it, keep BF16
  // gradients as they are: in FP32 each would be a sum of one. Off until a GPU has checked those
  // kernels; tests and nsa-bench model ask for it (docs/lab: one-micro-batch).
  bool keep_narrow = false;
};

class GradientReducer {
public:
  GradientReducer(FlatState& state, comm::Collectives& collectives, ReducerOptions options);
  ~GradientReducer();

  // Begins the gradients of a step at zero.
  void begin_step(uint64_t step);
  // Before each micro-step's backward pass; with several ranks reduction begins in that of the last
  // one.
  void begin_micro_step(bool last);
  // After each backward pass: what gradients are still held go into their sums.
  void end_micro_step();
  // After the last backward pass, once the sync scalars are filled in: reduces what is left and
  // waits. Then the sync scalars and square_sum() are those of all ranks, and `by_group`
  // group_square_sums(), too. Throws std::runtime_error naming parameters whose gradients are
  // missing against the options.
  comm::Outcome finish_step(bool by_group = false);
  // Of the step that finish_step() ended: marks in pairs, around each time in which the device
  // (on a CPU the host) had nothing left but to wait for its peers. Their sum is the step's exposed
  // communication: what overlapping with the backward pass did not hide. Empty for one rank.
  runtime::Stopwatch take_waits() { return std::exchange(waits_, new_stopwatch()); }

  // For recording (MicroSteps). While set, buckets that become ready in a backward pass are handed
  // on by their number instead of being started; start_next_buckets() starts them, then and in
  // every replay. A replayed backward pass runs no hooks: replayed() says what gradients it made,
  // which are those that seen() named when it was recorded.
  void hand_ready_buckets_to(std::function<void(size_t count)> taker) {
    ready_taker_ = std::move(taker);
  }
  void start_next_buckets(size_t count);
  const std::vector<bool>& seen() const { return seen_; } // by parameter, of the last micro-step
  void replayed(const std::vector<bool>& seen);

  // For fault injection: this rank starts no further collective in this step and goes on with its
  // own sums.
  void skip_collectives_of_this_step() { skip_ = true; }

private:
  struct Hook;
  void on_gradient(size_t parameter);
  void defer(size_t parameter);
  void add_deferred(size_t bucket);
  void start_ready_buckets();
  void start_bucket(size_t bucket);
  comm::Outcome agree(bool by_group);
  void check_coverage();
  void mark_wait(bool begins);
  bool can_stay_narrow() const;
  runtime::Stopwatch new_stopwatch() const { return runtime::Stopwatch(state_.gradients.device()); }

  FlatState& state_;
  comm::Collectives& collectives_;
  const ReducerOptions options_;

  uint64_t step_ = 0;
  bool last_micro_step_ = false, skip_ = false;
  std::vector<at::Tensor> gradient_views_;  // by parameter
  std::vector<bool> seen_;                  // gradients of the current micro-step, by parameter
  std::vector<bool> used_;                  // of the first step, under static_graph
  std::vector<bool> written_;               // sums begun in this step, by parameter
  std::vector<size_t> missing_;             // by bucket: gradients it still waits for
  size_t next_bucket_ = 0;                  // buckets start in the same order on all ranks
  std::function<void(size_t)> ready_taker_; // may be empty

  const bool defers_; // see ReducerOptions::defer
  const bool narrow_; // see ReducerOptions::keep_narrow
  struct Deferred {
    std::vector<at::Tensor> gradients;
    std::vector<size_t> parameters;
  };
  std::vector<Deferred> deferred_; // by bucket

  struct InFlight {
    std::unique_ptr<comm::Pending> pending;
    at::Tensor gradient, wire; // copied back when they differ: what this rank gets the sum of
  };
  std::vector<InFlight> in_flight_;
  runtime::Stopwatch waits_;
};

} // namespace nsa::train
