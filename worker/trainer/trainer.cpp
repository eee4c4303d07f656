#include "worker/trainer/trainer.h"

#include "common/base/log.h"
#include "common/spec/schedule.h"
#include "worker/faults/faults.h"
#include "worker/process_info/process_info.h"
#include "worker/trainer/evaluator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <cmath>

namespace nsa::train {

using progress::Phase;
using wire::MessageType;
using wire::RankExit;

namespace {

constexpr uint64_t kSteadyAfterSteps = 10; // allocators have settled by then

ReducerOptions reducer_options(const spec::ParallelSection& parallel) {
  ReducerOptions options;
  if (parallel.compress == spec::Compress::kBf16) options.compress = at::kBFloat16;
  if (parallel.compress == spec::Compress::kFp16) options.compress = at::kHalf;
  options.find_unused = parallel.find_unused;
  options.static_graph = parallel.static_graph;
  return options;
}

} // namespace

Trainer::Trainer(TrainerParts parts, Start start)
    : p_(std::move(parts)), train_(p_.spec.train), first_step_(start.step + 1),
      last_step_(static_cast<uint64_t>(train_.steps)),
      tokens_per_step_(static_cast<uint64_t>(p_.spec.tokens_per_step())),
      reducer_(p_.state, p_.collectives, p_.clock, reducer_options(p_.spec.parallel)),
      micro_steps_({p_.runtime, reducer_, p_.state.tail()[kLossWord], p_.loss, p_.staged},
                   1.0 / static_cast<double>(train_.accumulate * p_.collectives.world())),
      optimizer_(p_.state, train_), gatherer_(p_.state, p_.collectives, p_.clock),
      rule_(train_, start.non_finite_streak), tokens_(start.tokens) {
  last_.step = start.step;
}

Attempt<Finished> Trainer::run() {
  const size_t in_flight = static_cast<size_t>(p_.runtime.steps_in_flight());
  uint64_t step = first_step_;
  for (; step <= last_step_ && !stop_; ++step) {
    if (auto ok = run_step(step); !ok) return tl::unexpected(ok.error());
    const bool boundary = evaluates_at(step) || checkpoints_at(step) || step == last_step_;
    if (auto ok = settle(boundary ? 0 : in_flight - 1); !ok) return tl::unexpected(ok.error());
    if (auto ok = at_boundary(step); !ok) return tl::unexpected(ok.error());
  }
  if (auto ok = settle(0); !ok) return tl::unexpected(ok.error());
  const bool complete = last_.step >= last_step_;
  // A request that came with the very last results is still owed its checkpoint.
  const bool wanted =
      checkpoint_requested_ || (complete ? p_.spec.checkpoint.at_end : stop_with_checkpoint_);
  if (wanted && p_.checkpointer.last_step() != last_.step && last_.step >= first_step_)
    if (auto ok = checkpoint_now(last_.step); !ok) return tl::unexpected(ok.error());
  p_.clock.enter(Phase::kShutDown); // behind what ranks collect for it: progress::place_in_step
  for (auto& sink : p_.sinks)
    sink->flush();
  // A checkpoint that was the point of these last steps and is not there is a failure; one that
  // failed along the way has been reported and was made good by a later one.
  if (auto error = p_.checkpointer.finish()) return failed(RankExit::kCheckpoint, *error);
  return Finished{last_.step, tokens_, complete ? "completed" : "stopped"};
}

Attempt<void> Trainer::run_step(uint64_t step) {
  Enqueued enqueued;
  enqueued.step = step;
  if (!std::exchange(goes_on_, true)) enqueued.begin = p_.runtime.moment();
  p_.clock.begin_step(step, tokens_);
  reducer_.begin_step(step);
  try {
    run_micro_steps(step);
  } catch (const RecordingError& e) {
    return on_failed_recording(e);
  }

  enter(Phase::kAllReduce, step);
  put_requests();
  const bool skips = injects(Fault::kSkipCollective, step);
  if (skips) {
    announce_fault();
    reducer_.skip_collectives_of_this_step();
  }
  if (auto reduced = reducer_.finish_step(); !reduced) return failed(reduced.error());
  if (auto updated = update(step, skips, enqueued); !updated) return updated;
  enqueued_.push_back(std::move(enqueued));
  p_.runtime.mark_step(step, static_cast<uint32_t>(Phase::kOptimizer));
  return {};
}

Attempt<void> Trainer::update(uint64_t step, bool skips_collectives, Enqueued& enqueued) {
  enter(Phase::kOptimizer, step);
  enqueued.learning_rate = learning_rate(train_, step);
  const at::Tensor norm = optimizer_.step(enqueued.learning_rate, p_.state.tail()[kLossWord]);
  enqueued.waits.emplace(reducer_.take_waits());
  if (gatherer_.needed() && !skips_collectives) {
    enter(Phase::kGather, step);
    if (auto gathered = gatherer_.weights(step, *enqueued.waits); !gathered)
      return failed(gathered.error());
  }
  std::vector<at::Tensor> values{norm.reshape({1}), p_.state.tail()};
  if (p_.gates.take && recorded(step)) values.push_back(p_.gates.take());
  enqueued.end = p_.runtime.moment(); // before the values: passed when they are there
  enqueued.values = p_.runtime.read_later(at::cat(values));
  p_.clock.enter(Phase::kResults); // no device's phase: it may still wait for its peers
  return {};
}

// On both tracks: the host is here now, the device gets here behind what is enqueued.
void Trainer::enter(Phase phase, uint64_t step, uint64_t micro_step) {
  p_.clock.enter(phase, micro_step);
  p_.runtime.mark_phase(step, static_cast<uint32_t>(phase));
}

// Forward and backward of all micro-steps; the loss word becomes this rank's share of the mean
// loss.
void Trainer::run_micro_steps(uint64_t step) {
  for (int64_t m = 0; m < train_.accumulate; ++m) {
    const auto micro = static_cast<uint64_t>(m);
    p_.clock.enter(Phase::kData, micro);
    const std::shared_ptr<const data::Batch> batch = p_.loader.next();
    if (!batch->rows_from.empty())
      p_.clock.set_batch_index(static_cast<uint64_t>(batch->rows_from[0].sequence));

    enter(Phase::kForward, step, micro);
    if (m == 0) fault_before(step);
    const bool poisoned = m == 0 && injects(Fault::kNonFinite, step);
    if (poisoned) announce_fault();
    micro_steps_.run(batch,
                     {.first = m == 0, .last = m + 1 == train_.accumulate, .poisoned = poisoned},
                     [&] { enter(Phase::kBackward, step, micro); });
  }
}

// Where nobody insists on graphs, nsad starts the next attempt without them. Else the same would
// come again.
Attempt<void> Trainer::on_failed_recording(const RecordingError& error) const {
  if (!p_.graphs_or_nothing)
    return failed(RankExit::kGraphs,
                  {ErrorCode::kUnsupported, error.what(),
                   "nsad goes on without them; by hand: set toggles.cuda.graphs = \"off\""});
  return failed(RankExit::kUsage, {ErrorCode::kUnsupported, error.what(),
                                   "set toggles.cuda.graphs = \"auto\", which goes on without "
                                   "them, or \"off\""});
}

// What this rank has been asked for, beside the loss.
void Trainer::put_requests() {
  const at::NoGradGuard no_grad;
  const at::Tensor tail = p_.state.tail();
  const link::Requests requests = p_.link.take_requests();
  if (requests.stop) {
    tail[kStopWord].fill_(1.0);
    if (requests.checkpoint_before_stop) tail[kStopWithCheckpointWord].fill_(1.0);
  }
  if (requests.checkpoint) tail[kCheckpointWord].fill_(1.0);
}

Attempt<void> Trainer::settle(size_t leave) {
  while (enqueued_.size() > leave) {
    Enqueued front = std::move(enqueued_.front());
    enqueued_.pop_front();
    const std::vector<double> v = front.values->take();
    StepResult r;
    r.step = front.step;
    r.learning_rate = front.learning_rate;
    r.seconds = front.end->seconds_since(front.begin ? *front.begin : *last_end_);
    last_end_ = std::move(front.end);
    for (size_t i = 0; i + 1 < front.waits->marks(); i += 2)
      r.exposed_communication_seconds += front.waits->milliseconds(i, i + 1) / 1e3;
    r.gradient_norm = v[0];
    r.loss = v[1 + kLossWord];
    r.stop = v[1 + kStopWord] > 0;
    r.stop_with_checkpoint = v[1 + kStopWithCheckpointWord] > 0;
    r.checkpoint = v[1 + kCheckpointWord] > 0;
    for (size_t i = 1 + kTailWords; i < v.size(); ++i)
      if (const std::string& name = p_.gates.names.at(i - 1 - kTailWords);
          !name.empty() && std::isfinite(v[i])) // JSON has no word for NaN
        r.gates[name] = v[i];
    if (auto ok = on_result(r); !ok) return ok;
  }
  return {};
}

// Every rank sees the same values here, in the same order, so all of them decide alike.
Attempt<void> Trainer::on_result(const StepResult& r) {
  tokens_ += tokens_per_step_;
  last_ = r;
  stop_ = stop_ || r.stop;
  stop_with_checkpoint_ = stop_with_checkpoint_ || r.stop_with_checkpoint;
  checkpoint_requested_ = checkpoint_requested_ || r.checkpoint;
  const NonFiniteAction action = rule_.observe(r.loss, r.gradient_norm);
  last_finite_ = action == NonFiniteAction::kNone;
  report_step(r);
  ++results_seen_;
  if (results_seen_ == 1) record_memory("first-step");
  if (results_seen_ == kSteadyAfterSteps) record_memory("steady");
  return last_finite_ ? Attempt<void>() : on_non_finite(r.step, rule_.what(), action);
}

Attempt<void> Trainer::on_non_finite(uint64_t step, const std::string& what,
                                     NonFiniteAction action) {
  const wire::RankNonFinite event{p_.rank, step, std::string(action_name(action)), what};
  log::warning("train", what + " is not finite: " + event.action,
               {{"step", std::to_string(step)}, {"in_a_row", std::to_string(rule_.streak())}});
  if (p_.rank == 0) {
    p_.link.must_arrive(MessageType::kRankNonFinite, event);
    for (auto& sink : p_.sinks)
      sink->non_finite(event);
  }
  if (action == NonFiniteAction::kRollBack) return roll_back(step, what);
  if (action == NonFiniteAction::kStop)
    return failed(
        RankExit::kNonFinite,
        {ErrorCode::kInvalidArgument,
         "the " + what + " of step " + std::to_string(step) + " is not finite" +
             (rule_.streak() > 1 ? ", for the " + std::to_string(rule_.streak()) + ". time in a row"
                                 : ""),
         "lower train.learning_rate, or see train.non_finite"});
  return {}; // skip: the optimizer has left the update out already
}

// Weights and moments of the last good checkpoint, from rank 0 to all. Steps and data go on: the
// same data would only bring the same result again.
Attempt<void> Trainer::roll_back(uint64_t step, const std::string& what) {
  goes_on_ = false;
  const at::NoGradGuard no_grad;
  const Phase before = p_.clock.phase();
  p_.clock.enter(Phase::kRestore);
  FlatState& state = p_.state;
  std::string from = "rank 0";
  if (p_.rank == 0) {
    auto folder = p_.checkpointer.last_good();
    auto loaded = folder ? load_state(*folder, state) : Result<Counters>(fail(folder.error()));
    if (loaded)
      from = folder->string();
    else
      state.updates.fill_(-1.0); // tells the others that there is nothing to go back to
    if (!loaded) log::error("train", "cannot roll back: " + loaded.error().what);
  }
  uint32_t index = 0;
  for (const at::Tensor& t :
       {state.updates, state.masters, state.first_moments, state.second_moments}) {
    p_.clock.count_collective();
    if (auto o = p_.collectives.broadcast(t, 0, {step, comm::Kind::kParameters, index++}); !o)
      return failed(o.error());
    if (index == 1 && p_.runtime.read_later(t)->take()[0] < 0)
      return failed(RankExit::kNonFinite,
                    {ErrorCode::kNotFound,
                     "the " + what + " of step " + std::to_string(step) +
                         " is not finite, and there is no good checkpoint to roll back to",
                     "set checkpoint.interval_steps, or train.non_finite = \"skip\""});
  }
  state.publish_masters();
  p_.runtime.synchronize(); // else a GPU's host would wait for peers in another phase
  p_.clock.enter(before);
  log::info("train", "rolled back", {{"step", std::to_string(step)}, {"from", from}});
  return {};
}

void Trainer::report_step(const StepResult& r) {
  seconds_since_record_ += r.seconds;
  exposed_since_record_ += r.exposed_communication_seconds;
  ++steps_since_record_;
  if (train_.gradient_clip > 0 && r.gradient_norm > train_.gradient_clip) ++clipped_since_record_;
  if (!recorded(r.step)) return;
  const runtime::DeviceMemory memory = p_.runtime.memory();
  wire::RankStep step;
  step.rank = p_.rank;
  step.step = r.step;
  step.tokens = tokens_;
  step.loss = r.loss;
  step.gradient_norm = r.gradient_norm;
  step.learning_rate = r.learning_rate;
  step.step_seconds = seconds_since_record_ / static_cast<double>(steps_since_record_);
  step.tokens_per_second =
      step.step_seconds > 0 ? static_cast<double>(tokens_per_step_) / step.step_seconds : 0;
  seconds_since_record_ = 0;
  steps_since_record_ = 0;
  auto phases = p_.clock.take_seconds();
  step.clipped_steps = std::exchange(clipped_since_record_, 0);
  step.exposed_communication_seconds = std::exchange(exposed_since_record_, 0);
  step.data_wait_seconds = phases.count("data") ? phases["data"] : 0;
  step.phase_seconds = std::move(phases);
  step.gates = r.gates;
  if (p_.start_up != nullptr && results_seen_ == 0) {
    p_.start_up->passed("first-step");
    step.start_up_seconds = p_.start_up->seconds();
  }
  step.resident_bytes = runtime::resident_bytes();
  step.allocated_bytes = memory.allocated;
  step.reserved_bytes = memory.reserved;
  step.peak_bytes = memory.peak;
  for (auto& sink : p_.sinks)
    sink->step(step);
  if (p_.rank == 0)
    log::info("train", "step",
              {{"step", std::to_string(r.step)},
               {"loss", std::to_string(r.loss)},
               {"gradient_norm", std::to_string(r.gradient_norm)},
               {"seconds", std::to_string(step.step_seconds)}});
  // JSON has no word for NaN, so a step that is not finite is told as such and not as a number.
  if (last_finite_) p_.link.may_drop(MessageType::kRankStep, step);
}

bool Trainer::recorded(uint64_t step) const {
  const auto interval = static_cast<uint64_t>(train_.log_interval_steps);
  return step % interval == 0 || step == last_step_ || step == first_step_;
}

bool Trainer::evaluates_at(uint64_t step) const {
  if (p_.evaluation == nullptr) return false;
  const auto interval = static_cast<uint64_t>(p_.spec.eval.interval_steps);
  return (interval > 0 && step % interval == 0) || (step == last_step_ && p_.spec.eval.at_end);
}

bool Trainer::checkpoints_at(uint64_t step) const {
  const auto interval = static_cast<uint64_t>(p_.spec.checkpoint.interval_steps);
  return interval > 0 && step % interval == 0;
}

Attempt<void> Trainer::at_boundary(uint64_t step) {
  if (evaluates_at(step))
    if (auto ok = evaluate_now(step); !ok) return ok;
  if (checkpoints_at(step) || checkpoint_requested_) {
    // A request may be seen while a later step is under way already: the checkpoint is of the
    // newest step then, which is the state that lies in the buffers.
    if (auto ok = settle(0); !ok) return ok;
    checkpoint_requested_ = false;
    return checkpoint_now(last_.step);
  }
  return {};
}

Attempt<void> Trainer::evaluate_now(uint64_t step) {
  goes_on_ = false;
  const MonotonicTime begin = MonotonicTime::now();
  Evaluator evaluator{*p_.evaluation, p_.token_losses, p_.runtime, p_.collectives, p_.clock, {}};
  if (p_.spec.eval.token_losses)
    evaluator.keep_in = p_.run_folder / "evaluations" / manifest::folder_name(step);
  auto loss = evaluate(evaluator, step);
  if (!loss) return tl::unexpected(loss.error());
  const bool finite = std::isfinite(*loss);
  if (p_.rank == 0) {
    const wire::RankEvaluation evaluation{0, step, tokens_, *loss,
                                          to_seconds(MonotonicTime::now() - begin)};
    for (auto& sink : p_.sinks)
      sink->evaluation(evaluation);
    log::info("train", "held-out loss",
              {{"step", std::to_string(step)}, {"loss", std::to_string(*loss)}});
    if (finite) p_.link.must_arrive(MessageType::kRankEvaluation, evaluation);
  }
  return finite ? Attempt<void>() : on_non_finite(step, "held-out loss", rule_.on_evaluation());
}

Attempt<void> Trainer::checkpoint_now(uint64_t step) {
  goes_on_ = false;
  const MonotonicTime begin = MonotonicTime::now();
  if (gatherer_.needed()) {
    const Phase before = p_.clock.phase();
    p_.clock.enter_collect(Phase::kCheckpoint);
    fault_in_collect(step);
    if (auto gathered = gatherer_.masters_and_moments(step); !gathered)
      return failed(gathered.error());
    p_.runtime.synchronize(); // else a GPU's host would wait for peers in another phase
    p_.clock.enter(before);
  }
  const data::DataState data = p_.loader.state();
  Checkpointer::Moment moment;
  moment.begin = begin;
  moment.step = step;
  moment.tokens = tokens_;
  moment.finite = last_finite_;
  moment.loss = last_.loss;
  moment.data = {data.seed, static_cast<uint64_t>(data.epoch), static_cast<uint64_t>(data.index),
                 data.sequence_length, data.dataset_digest};
  moment.counters.non_finite_streak = rule_.streak();
  p_.checkpointer.start(moment, p_.clock);
  return {};
}

void Trainer::record_memory(const char* stage) {
  const runtime::DeviceMemory memory = p_.runtime.memory();
  p_.link.must_arrive(MessageType::kRankMemory,
                      wire::RankMemory{p_.rank, stage, runtime::resident_bytes(), memory.allocated,
                                       memory.reserved, memory.peak});
}

bool Trainer::injects(Fault fault, uint64_t step) const {
  return p_.injection && p_.injection->rank == p_.rank && p_.injection->step == step &&
         p_.injection->fault == fault;
}

void Trainer::announce_fault() {
  announce_injection(*p_.injection, p_.run_folder, p_.link);
}

void Trainer::fault_before(uint64_t step) {
  if (!p_.injection || p_.injection->rank != p_.rank || p_.injection->step != step) return;
  const Fault fault = p_.injection->fault;
  if (fault == Fault::kSkipCollective || fault == Fault::kDataStall || fault == Fault::kNonFinite ||
      acts_in_collect(fault))
    return;
  announce_fault();
  inject_on_training_thread(fault);
}

// Before this rank's part of the gather: what its peers hold then is partly of this step, partly of
// older ones.
void Trainer::fault_in_collect(uint64_t step) {
  if (!p_.injection || p_.injection->rank != p_.rank || p_.injection->step > step ||
      !acts_in_collect(p_.injection->fault))
    return;
  p_.injection->step = step;
  announce_fault();
  inject_on_training_thread(p_.injection->fault);
  p_.injection.reset(); // somebody let it go on
}

} // namespace nsa::train
