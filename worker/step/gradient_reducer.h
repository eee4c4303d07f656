// GradientReducer accumulates gradients in FP32 over the micro-steps of a step and sums them over
// all ranks, bucket by bucket. The reduction starts while the last backward pass still runs. If
// each rank updates a shard of the parameters, it gets the sums of that shard only.
//
// Training thread only. Hooks run inside backward(): on a GPU, on autograd's thread for that
// device, while the training thread waits in backward().
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
  // Element type of gradients in collectives; unset means FP32. The sync scalars are always reduced
  // in FP32.
  std::optional<at::ScalarType> compress;
  bool find_unused = false;  // allow parameters without a gradient; they count as zero
  bool static_graph = false; // the same parameters get gradients in every step
  // Keep narrow gradients until their bucket is complete and add them in one call. The first add of
  // a step writes instead. Unset: on if the device has a kernel for it.
  std::optional<bool> defer;
  // If a step is one micro-step of one rank, the update reads BF16 gradients where they lie,
  // instead of FP32 sums. Needs a device with kernels for it, and no `compress`. TrainStep sets it.
  bool keep_narrow = false;
};

class GradientReducer {
public:
  GradientReducer(FlatState& state, comm::Collectives& collectives, ReducerOptions options);
  ~GradientReducer();

  // Resets the gradients to zero for a new step.
  void begin_step(uint64_t step);
  // Call it before each micro-step's backward pass. With several ranks, reduction starts during the
  // last one.
  void begin_micro_step(bool last);
  // Call it after each backward pass. Adds the gradients that are still held to their sums.
  void end_micro_step();
  // Call it after the last backward pass, with the sync scalars filled in. Reduces the remaining
  // buckets and waits for all. Afterwards the sync scalars and square_sum() hold the values of all
  // ranks; with `by_group`, group_square_sums() does too. Throws std::runtime_error if gradients
  // are missing that the options require; the message names the parameters.
  comm::Outcome finish_step(bool by_group = false);
  // Pairs of marks for the step that finish_step() ended. Each pair encloses a time in which the
  // device (on a CPU the host) only waited for peers. Their sum is the step's exposed
  // communication, which overlap with the backward pass did not hide. Empty for one rank.
  runtime::Stopwatch take_waits() { return std::exchange(waits_, new_stopwatch()); }

  // For graph capture (MicroSteps). While a taker is set, buckets that become ready in a backward
  // pass are not started; the taker gets their number. start_next_buckets() starts them, then and
  // in every replay. A replayed backward pass runs no hooks, so replayed() passes what arrived()
  // reported at capture.
  void hand_ready_buckets_to(std::function<void(size_t count)> taker) {
    ready_taker_ = std::move(taker);
  }
  void start_next_buckets(size_t count);
  struct Arrived {
    std::vector<bool> seen;         // which parameters got a gradient in the last micro-step
    std::vector<at::Tensor> narrow; // the gradients, if updates read them where they lie
  };
  const Arrived& arrived() const { return arrived_; }
  void replayed(const Arrived& arrived);

  // For fault injection. This rank starts no more collectives in this step and continues with its
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
  std::vector<at::Tensor> gradient_views_;  // indexed by parameter
  Arrived arrived_;                         // in the current micro-step, by parameter
  std::vector<bool> used_;                  // parameters used in the first step, under static_graph
  std::vector<bool> written_;               // sums that this step has written, by parameter
  std::vector<size_t> missing_;             // gradients that are still missing, by bucket
  size_t next_bucket_ = 0;                  // buckets start in the same order on all ranks
  std::function<void(size_t)> ready_taker_; // may be empty

  const bool defers_; // see ReducerOptions::defer
  const bool narrow_; // see ReducerOptions::keep_narrow
  struct Deferred {
    std::vector<at::Tensor> gradients;
    std::vector<size_t> parameters;
  };
  std::vector<Deferred> deferred_; // indexed by bucket

  struct InFlight {
    std::unique_ptr<comm::Pending> pending;
    at::Tensor gradient, wire; // `gradient` is what this rank gets the sum of; copied back from
                               // `wire` if they differ
  };
  std::vector<InFlight> in_flight_;
  runtime::Stopwatch waits_;
};

} // namespace nsa::train
