#include "worker/trainer/trainer.h"

#include "common/base/log.h"
#include "common/spec/schedule.h"
#include "common/spec/worker_toggles.h"
#include "worker/optimizer/state_io.h"
#include "worker/trainer/checkpoint_hook.h"
#include "worker/trainer/evaluation_hook.h"
#include "worker/trainer/profile_hook.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace nsa::train {

using progress::Phase;
using wire::RankExit;

void Trainer::ShimRequests::add_requests(StepRequests& requests) {
  const link::Requests asked = link_.take_requests();
  requests.stop = requests.stop || asked.stop;
  requests.stop_with_checkpoint =
      requests.stop_with_checkpoint || (asked.stop && asked.checkpoint_before_stop);
  requests.checkpoint = requests.checkpoint || asked.checkpoint;
}

Trainer::Trainer(TrainerParts parts, Start start)
    : p_(std::move(parts)), train_(p_.spec.train),
      recorded_{static_cast<uint64_t>(train_.log_interval_steps), start.step + 1,
                static_cast<uint64_t>(train_.steps)},
      tokens_per_step_(static_cast<uint64_t>(p_.spec.tokens_per_step())), requests_(p_.link),
      step_(step_parts(), train_, reducer_options(p_.spec.parallel)),
      rule_(train_, start.non_finite_streak) {
  position_.step = start.step;
  position_.tokens = start.tokens;
  position_.non_finite_streak = start.non_finite_streak;
  epoch_ = p_.loader.state().epoch;
  make_hooks();
}

TrainStep::Parts Trainer::step_parts() {
  TrainStep::Parts parts{p_.runtime, p_.collectives, p_.clock, p_.state,
                         p_.loss,    p_.staged,      p_.gates, {&requests_}};
  if (p_.faults != nullptr) parts.hooks.push_back(p_.faults);
  parts.layer_interval_steps = static_cast<uint64_t>(p_.spec.metrics.layer_interval_steps);
  parts.selection = p_.selection;
  return parts;
}

void Trainer::make_hooks() {
  hooks_.push_back(std::make_unique<MetricsHook>(MetricsHook::Parts{
      p_.spec, p_.rank, p_.runtime, p_.link, p_.clock, p_.sinks, p_.start_up, recorded_}));
  if (p_.decoding.write_samples || p_.decoding.count_needles)
    hooks_.push_back(std::make_unique<DecodingHook>(p_.spec, p_.clock, p_.decoding, needles_));
  if (p_.evaluation != nullptr)
    hooks_.push_back(std::make_unique<EvaluationHook>(
        EvaluationHook::Parts{p_.spec,
                              {*p_.evaluation,
                               p_.token_losses,
                               p_.runtime,
                               p_.collectives,
                               p_.clock,
                               {},
                               p_.spec.parallel.context_ranks,
                               p_.rank % p_.spec.parallel.context_ranks},
                              p_.run_folder,
                              p_.link,
                              p_.sinks,
                              needles_}));
  hooks_.push_back(std::make_unique<CheckpointHook>(CheckpointHook::Parts{
      p_.spec.checkpoint, step_, p_.clock, p_.loader, p_.checkpointer, position_.step}));
  hooks_.push_back(
      std::make_unique<ProfileHook>(ProfileHook::Parts{p_.run_folder, p_.rank, p_.runtime}));
}

RankResult<Finished> Trainer::run() {
  try {
    return run_steps();
  } catch (const comm::PeerLost& lost) { // a collective inside a pass failed
    return failed(lost.failure());
  }
}

RankResult<Finished> Trainer::run_steps() {
  const size_t in_flight = static_cast<size_t>(p_.runtime.steps_in_flight());
  for (uint64_t step = recorded_.first; step <= recorded_.last && !stop_; ++step) {
    if (auto ok = enqueue(step); !ok) return tl::unexpected(ok.error());
    // The host has issued every kernel of the step by now, even if the device has not run them yet.
    if (step == recorded_.first)
      if (auto ok = compare_kernels(choice::Pass::kFirstStep); !ok)
        return tl::unexpected(ok.error());
    const bool boundary =
        step == recorded_.last || std::any_of(hooks_.begin(), hooks_.end(),
                                              [&](const auto& hook) { return hook->due(step); });
    if (auto ok = settle(boundary ? 0 : in_flight - 1); !ok) return tl::unexpected(ok.error());
    if (auto ok = at_boundary(step); !ok) return tl::unexpected(ok.error());
  }
  if (auto ok = settle(0); !ok) return tl::unexpected(ok.error());
  if (auto ok = compare_kernels(choice::Pass::kTraining); !ok) return tl::unexpected(ok.error());
  if (auto ok = at_end(); !ok) return tl::unexpected(ok.error());
  p_.clock.enter(Phase::kShutDown); // after the last checkpoint, for which the other ranks wait
  p_.clock.enqueue(progress::CollectiveKind::kEnd, 0);
  for (auto& sink : p_.sinks)
    sink->flush();
  // The attempt fails if the newest checkpoint failed. Earlier failures have been reported, and a
  // later checkpoint replaced them.
  if (auto error = p_.checkpointer.finish()) return failed(RankExit::kCheckpoint, *error);
  const bool complete = position_.step >= recorded_.last;
  return Finished{position_.step, position_.tokens,
                  complete ? wire::FinishReason::kCompleted : wire::FinishReason::kStopped};
}

// With data.follow, text is still being fetched. Every rank waits here for the text of the whole
// step, so no rank waits in a collective for another.
RankResult<void> Trainer::await_data() {
  RankResult<void> settled;
  bool told = false;
  const Status there = p_.loader.await_step([&] {
    if (settled) settled = settle(0); // results that are ready need not wait for the text
    if (!std::exchange(told, true)) log::info("train", "waits for text that is being fetched");
    p_.clock.enter(Phase::kDataArrival);
  });
  if (!there) return failed(RankExit::kData, there.error());
  return settled;
}

RankResult<void> Trainer::enqueue(uint64_t step) {
  if (auto ok = await_data(); !ok) return ok;
  const TrainStep::Request request{step, position_.tokens, learning_rate(train_, step),
                                   recorded_.has(step)};
  try {
    if (auto done = step_.enqueue(request, [&] { return p_.loader.next(); }); !done)
      return failed(done.error());
  } catch (const RecordingError& e) {
    return on_failed_recording(e);
  }
  if (p_.rank == 0 && recorded_.has(step)) tell_epoch(step);
  return {};
}

void Trainer::tell_epoch(uint64_t step) {
  const int64_t epoch = p_.loader.state().epoch;
  if (epoch > epoch_)
    p_.link.send(wire::RankEpoch{p_.rank, step, static_cast<uint64_t>(epoch) + 1});
  epoch_ = epoch;
}

// With cuda.graphs = "auto", nsad starts the next attempt without graphs. With "on", the next
// attempt would fail the same way, so the exit code prevents it.
RankResult<void> Trainer::on_failed_recording(const RecordingError& error) const {
  if (!p_.graphs_or_nothing)
    return failed(RankExit::kGraphs,
                  {ErrorCode::kUnsupported, error.what(),
                   "nsad continues without them; by hand: set toggles.cuda.graphs = \"off\""});
  return failed(RankExit::kUsage, {ErrorCode::kUnsupported, error.what(),
                                   "set toggles.cuda.graphs = \"auto\", which continues without "
                                   "them, or \"off\""});
}

RankResult<void> Trainer::settle(size_t leave) {
  while (step_.in_flight() > leave)
    if (auto ok = on_result(step_.take()); !ok) return ok;
  return {};
}

// Every rank sees the same values here, in the same order, so all of them decide alike.
RankResult<void> Trainer::on_result(const StepResult& r) {
  stop_ = stop_ || r.asks(kStop);
  stop_with_checkpoint_ = stop_with_checkpoint_ || r.asks(kStopWithCheckpoint);
  const NonFiniteAction action = rule_.observe(r.loss(), r.gradient_norm);
  position_ = {r.step, position_.tokens + tokens_per_step_, r.loss(),
               action == NonFiniteAction::kNone, rule_.streak()};
  for (auto& hook : hooks_)
    hook->on_result(r, position_);
  return position_.finite ? RankResult<void>() : on_non_finite(r.step, rule_.what(), action);
}

RankResult<void> Trainer::on_non_finite(uint64_t step, const std::string& what,
                                        NonFiniteAction action) {
  const wire::RankNonFinite event{p_.rank, step, action, what};
  log::warning("train", what + " is not finite: " + event.action.text(),
               {{"step", std::to_string(step)}, {"in_a_row", std::to_string(rule_.streak())}});
  if (p_.rank == 0) {
    p_.link.send(event);
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
  return {}; // skip: the optimizer has already left the update out
}

// Rank 0 loads weights and moments of the last good checkpoint and broadcasts them. Step numbers
// and data continue, because the same data would only give the same result again.
RankResult<void> Trainer::roll_back(uint64_t step, const std::string& what) {
  step_.pause();
  const at::NoGradGuard no_grad;
  const MonotonicTime begin = MonotonicTime::now();
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
      state.updates.fill_(-1.0); // a negative value tells the others that there is no good
                                 // checkpoint
    if (!loaded) log::error("train", "cannot roll back: " + loaded.error().what);
  }
  uint32_t index = 0;
  for (const at::Tensor& t :
       {state.updates, state.masters, state.first_moments, state.second_moments}) {
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
  p_.runtime.synchronize(); // otherwise the host would wait for peers in another phase
  p_.clock.enter(before);
  log::info("train", "rolled back", {{"step", std::to_string(step)}, {"from", from}});
  if (p_.rank == 0)
    p_.link.send(
        wire::RankRolledBack{p_.rank, step, from, to_seconds(MonotonicTime::now() - begin)});
  return {};
}

RankResult<void> Trainer::at_boundary(uint64_t step) {
  for (auto& hook : hooks_) {
    if (!hook->due(step)) continue;
    if (auto ok = settle(0); !ok) return ok;
    if (auto ok = call(*hook); !ok) return ok;
  }
  return {};
}

RankResult<void> Trainer::at_end() {
  const TrainingEnd end = position_.step >= recorded_.last ? TrainingEnd::kComplete
                          : stop_with_checkpoint_          ? TrainingEnd::kStoppedWithCheckpoint
                                                           : TrainingEnd::kStopped;
  for (auto& hook : hooks_)
    if (hook->due_at_end(end, position_))
      if (auto ok = call(*hook); !ok) return ok;
  return {};
}

RankResult<void> Trainer::compare_kernels(choice::Pass pass) {
  if (p_.kernels == nullptr) return {};
  const Status as_planned = p_.kernels->ran(pass);
  if (as_planned) return {};
  p_.link.send(wire::RankKernels{p_.rank, position_.step, as_planned.error().what});
  Error error = as_planned.error();
  if (spec::kKernelCheck.of(p_.spec.toggles) == spec::OtherKernels::kWarn) {
    log::warning("train", error.what + "; toggles.kernels.check = \"warn\" lets it train on");
    return {};
  }
  error.next += ". To train on meanwhile, set toggles.kernels.check = \"warn\"";
  return failed(RankExit::kToggleMismatch, std::move(error));
}

RankResult<void> Trainer::call(TrainingHook& hook) {
  step_.pause();
  if (auto ok = compare_kernels(choice::Pass::kTraining); !ok) return ok;
  auto not_finite = hook.run(position_);
  if (!not_finite) return tl::unexpected(not_finite.error());
  if (!hook.runs_planned_kernels()) {
    if (p_.kernels != nullptr) p_.kernels->skip();
  } else if (auto ok = compare_kernels(choice::Pass::kEvaluation); !ok) {
    return ok;
  }
  if (not_finite->empty()) return {};
  return on_non_finite(position_.step, *not_finite, rule_.on_evaluation());
}

} // namespace nsa::train
