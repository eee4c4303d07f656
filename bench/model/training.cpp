#include "bench/model/training.h"

#include "common/base/text.h"
#include "common/spec/toggles.h"
#include "nsa_model/choice/kernel_plan.h"
#include "nsa_model/ops/attention.h"
#include "worker/data/evaluation.h"
#include "worker/optimizer/state_io.h"

#include <set>

namespace nsa::bench {

void StepMarks::enter(progress::Phase phase, uint64_t, uint64_t micro_step) {
  using progress::Phase;
  if (watch == nullptr || micro_step > 0) return;
  if (phase == Phase::kData || phase == Phase::kBackward || phase == Phase::kAllReduce ||
      phase == Phase::kResults)
    watch->mark();
}

Training::Training(const spec::RunSpec& spec, runtime::Runtime& runtime,
                   comm::Collectives& collectives, Layers layers,
                   std::shared_ptr<const dataset::Dataset> dataset)
    : spec_(spec), runtime_(runtime), collectives_(collectives), layers_(layers),
      precision_(or_die(train::choose_precision(spec.precision, runtime.why_bf16_is_slow()))),
      model_(planned(spec).config, runtime.device(), precision_.bf16 ? at::kBFloat16 : at::kFloat,
             static_cast<uint64_t>(spec.train.seed)),
      clock_(or_die(progress::Page::create(collectives.rank(), 1))), dataset_(std::move(dataset)),
      loss_(train::make_loss(model_, runtime.device(), separator_of(spec, dataset_.get()))),
      gates_(train::gates_of(model_)), selection_(train::selection_of(model_)) {
  model_.share_context(train::make_context_group(collectives,
                                                 static_cast<int>(spec.parallel.context_ranks),
                                                 [this] { return clock_.position().step; }));
}

train::PlannedModel Training::planned(const spec::RunSpec& spec) const {
  train::PlannedModel planned = or_die(train::plan_model(
      spec, or_die(spec::resolve_toggles(spec.toggles)), runtime_.device(), precision_.bf16));
  if (layers_ != Layers::kAuto) planned.config.fused_layers = layers_ == Layers::kFused;
  return planned;
}

bool Training::serves(const spec::RunSpec& spec) const {
  const model::ModelConfig other = planned(spec).config;
  return other.kernels == model_.config().kernels &&
         other.dense_backend == model_.config().dense_backend;
}

void Training::prepare() {
  const auto bucket = static_cast<size_t>(spec_.parallel.bucket_mib * 1024.0 * 1024.0);
  state_.emplace(train::parameters_of(model_), bucket, train::kSyncScalars, precision_.mode,
                 train::shard_of_rank(spec_.parallel, collectives_.rank(), collectives_.world()));
}

void Training::load(const std::string& checkpoint) {
  or_die(train::load_state(checkpoint, *state_));
}

void Training::use(const spec::RunSpec& spec, bool graphs) {
  spec_ = spec;
  finish();
  step_.reset(); // graphs hold memory
  std::optional<train::StagedLoss> staged;
  if (graphs && spec.data.document_mask)
    die({ErrorCode::kInvalidArgument, "--graphs on: launches follow where documents begin",
         "leave --graphs on or data.document_mask out"});
  if (graphs) staged = train::make_staged_loss(model_, runtime_.device());
  step_.emplace(train::TrainStep::Parts{runtime_,
                                        collectives_,
                                        clock_,
                                        *state_,
                                        loss_,
                                        staged,
                                        gates_,
                                        {&marks_},
                                        static_cast<uint64_t>(spec.metrics.layer_interval_steps),
                                        selection_},
                spec_.train, train::reducer_options(spec_.parallel));
  batches_.emplace(spec_, runtime_, collectives_.rank(), dataset_);
  results_.clear();
  stopped_ = marks_.wants_stop = false;
}

void Training::step(Stopwatch& watch) {
  marks_.watch = &watch;
  const train::TrainStep::Request request{++count_, 0, spec_.train.learning_rate,
                                          /*is_recorded=*/true};
  if (auto done = step_->enqueue(request, [this] { return batches_->next(); }); !done)
    die(done.error());
  take(static_cast<size_t>(runtime_.steps_in_flight()) - 1);
}

void Training::take(size_t leave) {
  while (step_->in_flight() > leave) {
    results_.push_back(step_->take());
    stopped_ = stopped_ || results_.back().asks(train::kStop);
  }
}

void Training::finish() {
  if (step_) take(0);
  runtime_.synchronize();
}

std::string Training::kernels_in_effect() const {
  const auto parts = choice::report_of(planned(spec_).kernels);
  std::set<std::string> distinct;
  for (const char* branch : {"compressed", "selected", "sliding", "dense"})
    if (const auto kernel = parts.find(branch); kernel != parts.end())
      distinct.insert(kernel->second);
  return join({distinct.begin(), distinct.end()}, ", ");
}

ops::AttentionInputs Training::attention_inputs(int64_t layer) {
  std::shared_ptr<const data::Batch> batch;
  if (dataset_) {
    const data::BatchShape shape{spec_.train.sequence_length, spec_.train.micro_batch};
    batch = std::make_shared<data::Batch>(
        or_die(data::EvaluationSet::open({{dataset_}}, shape, spec_.train.micro_batch)).batch(0));
  } else {
    batch = batches_->next();
  }
  const at::Tensor tokens =
      at::from_blob(const_cast<int64_t*>(batch->inputs.data()),
                    {batch->rows, batch->sequence_length}, at::TensorOptions().dtype(at::kLong))
          .to(runtime_.device());
  return model_.attention_inputs(tokens, std::nullopt, layer);
}

} // namespace nsa::bench
