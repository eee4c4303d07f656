#include "worker/step/gradient_reducer.h"

#include "nsa_model/ops/step_part.h"
#include "nsa_model/ops/update.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <stdexcept>

namespace nsa::train {

using ops::PartScope;
using ops::StepPart;

// Autograd calls it when a parameter's gradient of this backward pass is complete.
struct GradientReducer::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(GradientReducer* reducer, size_t parameter) : reducer_(reducer), parameter_(parameter) {}
  void operator()(const at::Tensor&) override { reducer_->on_gradient(parameter_); }
  GradientReducer* reducer_;
  size_t parameter_;
};

GradientReducer::GradientReducer(FlatState& state, comm::Collectives& collectives,
                                 ReducerOptions options)
    : state_(state), collectives_(collectives), options_(options),
      defers_(state.tensor(0).scalar_type() != at::kFloat &&
              options.defer.value_or(ops::has_update_kernels(state.gradients.device()))),
      narrow_(can_stay_narrow()), deferred_(state.plan().buckets.size()), waits_(new_stopwatch()) {
  state_.keep_narrow_gradients(narrow_);
  for (size_t i = 0; i < state_.parameter_count(); ++i) {
    at::Tensor parameter = state_.tensor(i);
    gradient_views_.push_back(state_.slice(state_.gradients, i));
    // Autograd accumulates the gradient of an FP32 parameter directly in the buffer. A parameter of
    // another type gets a new gradient each time, which the hook adds in FP32.
    if (parameter.scalar_type() == at::kFloat) parameter.mutable_grad() = gradient_views_[i];
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(this, i));
  }
  arrived_.seen.assign(state_.parameter_count(), false);
}

bool GradientReducer::can_stay_narrow() const {
  return options_.keep_narrow && defers_ && collectives_.world() == 1 && !options_.compress &&
         state_.tensor(0).scalar_type() == at::kBFloat16 &&
         state_.parameter_count() <= ops::kMostPieces &&
         ops::has_update_kernels(state_.gradients.device());
}

GradientReducer::~GradientReducer() {
  for (size_t i = 0; i < state_.parameter_count(); ++i) {
    at::Tensor parameter = state_.tensor(i);
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
    parameter.mutable_grad().reset();
  }
}

void GradientReducer::begin_step(uint64_t step) {
  const at::NoGradGuard no_grad;
  const PartScope part(StepPart::kReduction);
  step_ = step;
  skip_ = false;
  if (!defers_) {
    state_.gradients.zero_();
    return;
  }
  state_.agreed_words().zero_(); // each sum is written before anything is added to it
  if (narrow_) state_.set_narrow_gradients({}); // the last step's
  written_.assign(state_.parameter_count(), false);
  for (Deferred& deferred : deferred_)
    deferred = {};
}

void GradientReducer::begin_micro_step(bool last) {
  const PartScope part(StepPart::kReduction);
  last_micro_step_ = last;
  arrived_.seen.assign(state_.parameter_count(), false);
  if (narrow_) arrived_.narrow.assign(state_.parameter_count(), at::Tensor());
  if (!last) return;
  // With a static graph, buckets do not wait for unused parameters, so they can start before
  // finish_step().
  if (defers_ && !narrow_) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < used_.size(); ++i)
      if (!used_[i] && !written_[i]) {
        gradient_views_[i].zero_();
        written_[i] = true;
      }
  }
  next_bucket_ = 0;
  missing_.clear();
  for (const BucketPlan::Bucket& bucket : state_.plan().buckets)
    missing_.push_back(bucket.parameters);
  for (size_t i = 0; i < used_.size(); ++i)
    if (!used_[i]) --missing_[state_.plan().slots[i].bucket];
}

void GradientReducer::on_gradient(size_t i) {
  const at::NoGradGuard no_grad;
  const PartScope part(StepPart::kReduction);
  // If a gradient came twice in one pass, its bucket might already have been sent with half of the
  // sum.
  if (arrived_.seen[i])
    throw std::runtime_error("the gradient of " + state_.name(i) +
                             " came twice in one backward pass");
  arrived_.seen[i] = true;
  at::Tensor parameter = state_.tensor(i);
  if (narrow_) {
    arrived_.narrow[i] = state_.readable_gradient(i, parameter.grad());
    parameter.mutable_grad().reset();
  } else if (defers_) {
    defer(i);
  } else if (parameter.scalar_type() != at::kFloat) {
    gradient_views_[i].add_(parameter.grad());
    parameter.mutable_grad().reset();
  }
  if (!last_micro_step_) return;
  if (!used_.empty() && !used_[i])
    throw std::runtime_error("parallel.static_graph is set, but " + state_.name(i) +
                             " has a gradient now and had none in the first step");
  --missing_[state_.plan().slots[i].bucket];
  if (collectives_.world() > 1) start_ready_buckets(); // one rank gains nothing from an early start
}

void GradientReducer::end_micro_step() {
  const at::NoGradGuard no_grad;
  const PartScope part(StepPart::kReduction);
  for (size_t b = 0; b < deferred_.size(); ++b)
    add_deferred(b); // buckets with parameters that got no gradient
}

void GradientReducer::replayed(const Arrived& arrived) {
  arrived_ = arrived;
  for (size_t i = 0; i < written_.size(); ++i)
    if (arrived.seen[i]) written_[i] = true;
}

void GradientReducer::defer(size_t i) {
  const BucketPlan::Slot& slot = state_.plan().slots[i];
  Deferred& of_bucket = deferred_[slot.bucket];
  at::Tensor parameter = state_.tensor(i);
  of_bucket.gradients.push_back(parameter.grad());
  of_bucket.parameters.push_back(i);
  parameter.mutable_grad().reset();
  // Parameters that a static graph never uses are not waited for.
  size_t unused = 0;
  if (!used_.empty())
    for (size_t k = 0; k < used_.size(); ++k)
      unused += !used_[k] && state_.plan().slots[k].bucket == slot.bucket;
  if (of_bucket.gradients.size() + unused == state_.plan().buckets[slot.bucket].parameters)
    add_deferred(slot.bucket);
}

void GradientReducer::add_deferred(size_t bucket) {
  Deferred& deferred = deferred_[bucket];
  for (const bool first : {true, false}) {
    std::vector<at::Tensor> gradients;
    std::vector<int64_t> offsets;
    for (size_t k = 0; k < deferred.parameters.size(); ++k) {
      const size_t i = deferred.parameters[k];
      if (written_[i] == first) continue;
      gradients.push_back(deferred.gradients[k]);
      offsets.push_back(static_cast<int64_t>(state_.plan().slots[i].offset));
    }
    if (!gradients.empty()) ops::add_gradients_(state_.gradients, gradients, offsets, first);
  }
  for (const size_t i : deferred.parameters)
    written_[i] = true;
  deferred = {};
}

// The last bucket waits for finish_step(). Without shards it carries the sync scalars, which
// finish_step()'s caller fills in.
void GradientReducer::start_ready_buckets() {
  const size_t end = state_.plan().buckets.size() - 1;
  size_t count = 0;
  while (next_bucket_ + count < end && missing_[next_bucket_ + count] == 0)
    ++count;
  if (count == 0) return;
  if (ready_taker_)
    ready_taker_(count);
  else
    start_next_buckets(count);
}

void GradientReducer::start_next_buckets(size_t count) {
  const at::NoGradGuard no_grad;
  const PartScope part(StepPart::kReduction);
  for (; count > 0; --count)
    start_bucket(next_bucket_++);
}

// With shards, agree() reduces the sync scalars, because some of them need the gradient sums.
void GradientReducer::start_bucket(size_t b) {
  if (skip_ || narrow_) return; // narrow: there is one rank only
  const BucketPlan& plan = state_.plan();
  const bool last = b + 1 == plan.buckets.size();
  const bool shared = state_.shard().of > 1;
  auto start = [&](Range of, Range own, bool compressed, uint32_t index) {
    if (of.count() == 0) return;
    InFlight item;
    at::Tensor wire = state_.range(state_.gradients, of);
    if (compressed) wire = wire.to(*options_.compress);
    item.gradient = state_.range(state_.gradients, own);
    item.wire =
        compressed ? state_.range(wire, {own.begin - of.begin, own.end - of.begin}) : item.gradient;
    if (last) mark_wait(true); // before the start, because a fast peer may answer at once
    const comm::Tag tag{step_, comm::Kind::kGradient, index};
    item.pending = shared ? collectives_.reduce_scatter_sum(wire, tag)
                          : collectives_.all_reduce_sum(wire, tag);
    in_flight_.push_back(std::move(item));
  };
  const auto index = static_cast<uint32_t>(b);
  const Range parameters = plan.parameters_of(b);
  const Range all{parameters.begin, plan.buckets[b].end};
  if (shared) {
    start(parameters, shard_of(plan, b, state_.shard()), options_.compress.has_value(), index);
  } else if (options_.compress) {
    start(parameters, parameters, true, index);
    start({parameters.end, all.end}, {parameters.end, all.end}, false, index + 1);
  } else {
    start(all, all, false, index);
  }
}

// Adds up the squares of all gradients. With shards each rank knows only its own squares and sync
// scalars, so an all-reduce sums them.
comm::Outcome GradientReducer::agree(bool by_group) {
  state_.sum_squares(by_group);
  if (state_.shard().of == 1 || skip_) return {};
  mark_wait(true);
  auto outcome =
      collectives_.all_reduce_sum(state_.agreed_words(), {step_, comm::Kind::kAgreement, 0})
          ->wait();
  mark_wait(false);
  return outcome;
}

void GradientReducer::check_coverage() {
  if (options_.static_graph && used_.empty()) {
    used_ = arrived_.seen;
    return;
  }
  std::string absent;
  for (size_t i = 0; i < arrived_.seen.size(); ++i)
    if (!arrived_.seen[i] && (used_.empty() || used_[i]))
      absent += (absent.empty() ? "" : ", ") + state_.name(i);
  if (absent.empty()) return;
  if (options_.static_graph)
    throw std::runtime_error(
        "parallel.static_graph is set, but in this step no gradient came for " + absent);
  if (!options_.find_unused)
    throw std::runtime_error("no gradient came for " + absent +
                             "; set parallel.find_unused = true if that is meant");
}

void GradientReducer::mark_wait(bool begins) {
  const bool under_way = waits_.marks() % 2 == 1;
  if (collectives_.world() > 1 && begins != under_way) waits_.mark();
}

comm::Outcome GradientReducer::finish_step(bool by_group) {
  const at::NoGradGuard no_grad;
  const PartScope part(StepPart::kReduction);
  check_coverage();
  waits_ = new_stopwatch();
  // Parameters without a gradient in this step count as zero. Their sums must not keep the previous
  // step's values.
  if (narrow_)
    state_.set_narrow_gradients(std::exchange(arrived_.narrow, {}));
  else
    for (size_t i = 0; i < written_.size(); ++i)
      if (!written_[i]) gradient_views_[i].zero_();
  start_next_buckets(state_.plan().buckets.size() - next_bucket_);
  comm::Outcome outcome;
  for (InFlight& item : in_flight_) {
    mark_wait(true);
    comm::Outcome one = item.pending->wait();
    if (!one && outcome) outcome = one; // the first failure is the cause; the loop continues
    if (!one || item.wire.is_same(item.gradient)) continue;
    mark_wait(false); // converting to FP32 is compute and hides communication
    item.gradient.copy_(item.wire);
  }
  mark_wait(false);
  in_flight_.clear();
  return outcome ? agree(by_group) : outcome;
}

} // namespace nsa::train
