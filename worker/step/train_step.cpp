#include "worker/step/train_step.h"

#include "nsa_model/ops/step_part.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <cmath>
#include <utility>

namespace nsa::train {

using ops::PartScope;
using ops::StepPart;
using progress::DeviceWord;
using progress::Phase;

ReducerOptions reducer_options(const spec::ParallelSection& parallel) {
  ReducerOptions options;
  if (parallel.compress == spec::Compress::kBf16) options.compress = at::kBFloat16;
  if (parallel.compress == spec::Compress::kFp16) options.compress = at::kHalf;
  options.find_unused = parallel.find_unused;
  options.static_graph = parallel.static_graph;
  return options;
}

Shard shard_of_rank(const spec::ParallelSection& parallel, Rank rank, int world) {
  if (!parallel.shard_update) return {};
  return {static_cast<size_t>(rank), static_cast<size_t>(world)};
}

namespace {
ReducerOptions for_micro_steps(ReducerOptions options, int64_t count) {
  options.keep_narrow = count == 1; // otherwise gradients are sums
  return options;
}
} // namespace

TrainStep::TrainStep(Parts parts, const spec::TrainSection& train, ReducerOptions options)
    : p_(std::move(parts)), accumulate_(train.accumulate),
      reducer_(p_.state, p_.collectives, for_micro_steps(options, train.accumulate)),
      micro_steps_({p_.runtime, reducer_, p_.state.sync_scalars()[kLoss], p_.loss, p_.staged},
                   1.0 / static_cast<double>(train.accumulate * p_.collectives.world())),
      optimizer_(p_.state, train), gatherer_(p_.state, p_.collectives) {
  for (const std::string& group : p_.state.groups())
    group_names_.push_back("gradient_norms/" + group);
}

comm::Outcome TrainStep::enqueue(const Request& request, const NextBatch& next_batch) {
  InFlight step;
  step.step = request.step;
  step.learning_rate = request.learning_rate;
  if (!std::exchange(goes_on_, true)) step.begin = p_.runtime.record_event();
  p_.clock.begin_step(request.step, request.tokens);
  choose_figures(request, step);
  reducer_.begin_step(request.step);
  run_micro_steps(request.step, next_batch);
  enter(Phase::kAllReduce, request.step);
  bool skip = false;
  StepRequests requests;
  for (StepHook* hook : p_.hooks) {
    hook->add_requests(requests);
    skip = hook->skips_collectives(request.step) || skip;
  }
  put(requests);
  if (skip) reducer_.skip_collectives_of_this_step();
  if (auto reduced = reducer_.finish_step(step.has_group_norms); !reduced) return reduced;
  if (auto updated = update(request, skip, step); !updated) return updated;
  in_flight_.push_back(std::move(step));
  p_.runtime.mark(DeviceWord::kCompletedStep, request.step);
  return {};
}

// Every rank must choose the same, because they sum the groups' squares together.
void TrainStep::choose_figures(const Request& request, InFlight& step) {
  const uint64_t interval = p_.layer_interval_steps;
  const bool layers = request.is_recorded && interval > 0 && request.step >= next_layer_step_;
  if (layers) next_layer_step_ = request.step + interval;
  step.has_group_norms = layers && !group_names_.empty();
  if (p_.gates.take && request.is_recorded) step.figures.push_back(&p_.gates);
  if (p_.selection.take && layers) step.figures.push_back(&p_.selection);
  // A graph that is captured now is also replayed in steps that need the figures.
  if (p_.selection.watch) p_.selection.watch(layers || (p_.staged && interval > 0));
}

// Marks the phase of both host and device: the host enters it now, the device after the enqueued
// work.
void TrainStep::enter(Phase phase, uint64_t step, uint64_t micro_step) {
  p_.clock.enter(phase, micro_step);
  p_.runtime.mark(DeviceWord::kPosition, p_.clock.position().word());
  for (StepHook* hook : p_.hooks)
    hook->enter(phase, step, micro_step);
}

// Marks a phase that only the host enters. The device may still wait for its peers.
void TrainStep::enter_on_host(Phase phase, uint64_t step, uint64_t micro_step) {
  p_.clock.enter(phase, micro_step);
  for (StepHook* hook : p_.hooks)
    hook->enter(phase, step, micro_step);
}

// Runs forward and backward of all micro-steps. The loss word becomes this rank's part of the mean
// loss.
void TrainStep::run_micro_steps(uint64_t step, const NextBatch& next_batch) {
  for (int64_t m = 0; m < accumulate_; ++m) {
    const auto micro = static_cast<uint64_t>(m);
    enter(Phase::kData, step, micro);
    const std::shared_ptr<const data::Batch> batch = [&] {
      const PartScope part(StepPart::kData);
      return next_batch();
    }();
    if (!batch->rows_from.empty())
      p_.clock.set_batch_index(static_cast<uint64_t>(batch->rows_from[0].sequence));
    enter(Phase::kForward, step, micro);
    bool poisoned = false;
    if (m == 0)
      for (StepHook* hook : p_.hooks)
        poisoned = hook->poisons(step) || poisoned;
    micro_steps_.run(batch, {.first = m == 0, .last = m + 1 == accumulate_, .poisoned = poisoned},
                     [&] { enter(Phase::kBackward, step, micro); });
  }
}

void TrainStep::put(const StepRequests& requests) {
  const at::NoGradGuard no_grad;
  const PartScope part(StepPart::kReduction);
  const at::Tensor scalars = p_.state.sync_scalars();
  if (requests.stop) scalars[kStop].fill_(1.0);
  if (requests.stop_with_checkpoint) scalars[kStopWithCheckpoint].fill_(1.0);
  if (requests.checkpoint) scalars[kCheckpoint].fill_(1.0);
}

comm::Outcome TrainStep::update(const Request& request, bool skip, InFlight& step) {
  enter(Phase::kOptimizer, request.step);
  const at::Tensor norm = [&] {
    const PartScope part(StepPart::kOptimizer);
    return optimizer_.step(request.learning_rate, p_.state.sync_scalars()[kLoss]);
  }();
  step.waits.emplace(reducer_.take_waits());
  if (gatherer_.needed() && !skip) {
    enter(Phase::kAllGatherWeights, request.step);
    const PartScope part(StepPart::kWeights);
    if (auto gathered = gatherer_.weights(request.step, *step.waits); !gathered) return gathered;
  }
  const PartScope part(StepPart::kResults);
  std::vector<at::Tensor> values{norm.reshape({1}), p_.state.sync_scalars()};
  if (step.has_group_norms) values.push_back(p_.state.group_square_sums());
  for (const LayerFigures* figures : step.figures)
    values.push_back(figures->take());
  step.end = p_.runtime.record_event(); // recorded before the values are read, so it has completed
                                        // when they arrive
  step.values = p_.runtime.read_later(at::cat(values));
  enter_on_host(Phase::kResults, request.step);
  return {};
}

StepResult TrainStep::take() {
  const PartScope part(StepPart::kResults);
  InFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const std::vector<double> values = step.values->take();
  StepResult result;
  result.step = step.step;
  result.learning_rate = step.learning_rate;
  result.seconds = step.end->seconds_since(step.begin ? *step.begin : *last_end_);
  last_end_ = std::move(step.end);
  for (size_t i = 0; i + 1 < step.waits->marks(); i += 2)
    result.exposed_communication_seconds += step.waits->milliseconds(i, i + 1) / 1e3;
  result.gradient_norm = values[0];
  const auto scalars = values.begin() + 1;
  std::copy(scalars, scalars + kSyncScalars, result.scalars.begin());
  take_figures(step, std::span(values).subspan(1 + kSyncScalars), result);
  return result;
}

void TrainStep::take_figures(const InFlight& step, std::span<const double> values,
                             StepResult& result) const {
  size_t next = 0;
  const auto add = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names)
      result.layers.emplace_back(name, values[next++]);
  };
  if (step.has_group_norms) add(group_names_);
  for (auto& [group, norm] : result.layers)
    norm = std::sqrt(norm);
  for (const LayerFigures* figures : step.figures)
    add(figures->names);
}

comm::Outcome TrainStep::gather_state(uint64_t step) {
  if (!gatherer_.needed()) return {};
  const Phase before = p_.clock.phase();
  enter_on_host(Phase::kAllGatherState, step);
  if (auto gathered = gatherer_.masters_and_moments(step); !gathered) return gathered;
  p_.runtime.synchronize(); // otherwise the host would wait for peers in another phase
  p_.clock.enter(before);
  return {};
}

} // namespace nsa::train
