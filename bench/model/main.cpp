// nsa-bench model: training steps of a whole model on this machine, as the worker makes them, and
// the table of NSA and its dense twin over the lengths of a text.
//
// Times are of the device's events. MFU counts the model's own products and attended pairs against
// the device's dense BF16 rate, where that is known.
#include "bench/model/initial_values.h"
#include "bench/model/options.h"
#include "bench/model/parts.h"
#include "bench/model/stopwatch.h"
#include "bench/model/trace.h"
#include "bench/saved_attention/saved_attention.h"
#include "common/base/build_info.h"
#include "common/base/json.h"
#include "common/base/text.h"
#include "common/estimate/device_peak.h"
#include "common/estimate/estimate.h"
#include "common/spec/toggles.h"
#include "nsa_model/choice/kernel_plan.h"
#include "worker/data/batch_builder.h"
#include "worker/data/evaluation.h"
#include "worker/model/kernel_setup.h"
#include "worker/model/model_loss.h"
#include "worker/optimizer/state_io.h"
#include "worker/rules/precision.h"
#include "worker/step/train_step.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <set>

namespace {

using namespace nsa;
using bench::Options;
using bench::Stopwatch;
using nlohmann::ordered_json;

constexpr int kWarmUpSteps = 4; // with graphs the third is recorded
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

[[noreturn]] void die(const Error& error) {
  std::fprintf(stderr, "error: %s%s%s\n", error.what.c_str(), error.next.empty() ? "" : ": ",
               error.next.c_str());
  std::exit(1);
}
template <class T> T or_die(Result<T> result) {
  if (!result) die(result.error());
  return std::move(*result);
}

// Four marks a step: its begin, forward's end, the optimizer's begin, its end.
class StepMarks : public train::StepHook {
public:
  Stopwatch* watch = nullptr; // nothing: not measured
  void enter(progress::Phase phase, uint64_t, uint64_t micro_step) override {
    using progress::Phase;
    if (watch == nullptr || micro_step > 0) return;
    if (phase == Phase::kData || phase == Phase::kBackward || phase == Phase::kAllReduce ||
        phase == Phase::kResults)
      watch->mark();
  }
};

// Training as the worker does it, a step at a time.
class Training {
public:
  // `dataset`: none for random tokens.
  Training(const spec::RunSpec& spec, runtime::Runtime& runtime, const std::string& layers,
           std::shared_ptr<const dataset::Dataset> dataset)
      : spec_(spec), runtime_(runtime), layers_(layers),
        precision_(or_die(train::choose_precision(spec.precision, runtime.why_bf16_is_slow()))),
        model_(planned(spec).config, runtime.device(), precision_.bf16 ? at::kBFloat16 : at::kFloat,
               1),
        clock_(or_die(progress::Page::create(0, 1))),
        loss_(train::make_loss(model_, runtime.device(), separator(spec, dataset.get()))),
        gates_(train::gates_of(model_)), dataset_(std::move(dataset)) {
    make_batches();
  }

  // Whether "auto" takes the same kernels of attention for a run of another length.
  bool serves(const spec::RunSpec& spec) const {
    const model::ModelConfig other = planned(spec).config;
    return other.kernels == model_.config().kernels &&
           other.dense_backend == model_.config().dense_backend;
  }

  // Goes on with batches of another length, or in another way. The model is the same.
  void use(const spec::RunSpec& spec, bool graphs) {
    spec_ = spec;
    finish();
    step_.reset(); // graphs keep memory
    std::optional<train::StagedLoss> staged;
    if (graphs && spec.data.document_mask)
      die({ErrorCode::kInvalidArgument, "--graphs on: launches follow where documents begin"});
    if (graphs) staged = train::make_staged_loss(model_, runtime_.device());
    step_.emplace(
        train::TrainStep::Parts{
            runtime_, *collectives_, clock_, *state_, loss_, staged, gates_, {&marks_}},
        spec_.train, train::reducer_options(spec_.parallel));
    make_batches();
  }
  size_t graphs() const { return step_->graphs(); }

  model::LanguageModel& model() { return model_; }
  std::string computes_in() const { return precision_.name(); }
  // "fused hopper", "aten cudnn"; of each branch where they differ.
  std::string kernels_in_effect() const {
    const auto parts = choice::report_of(planned(spec_).kernels);
    std::set<std::string> distinct;
    for (const char* branch : {"compressed", "selected", "sliding", "dense"})
      if (const auto kernel = parts.find(branch); kernel != parts.end())
        distinct.insert(kernel->second);
    return join({distinct.begin(), distinct.end()}, ", ");
  }

  // Afterwards parameters have hooks and live in flat buffers.
  void prepare() {
    const auto bucket = static_cast<size_t>(spec_.parallel.bucket_mib * 1024.0 * 1024.0);
    state_.emplace(train::parameters_of(model_), bucket, train::kSyncScalars, precision_.mode,
                   train::shard_of_rank(spec_.parallel, 0, 1));
  }
  void load(const std::string& checkpoint) { or_die(train::load_state(checkpoint, *state_)); }

  // Waits for the step before last.
  void step(Stopwatch& watch) {
    marks_.watch = &watch;
    const train::TrainStep::Request request{++count_, 0, spec_.train.learning_rate,
                                            /*with_gates=*/true};
    if (auto done = step_->enqueue(request, [this] { return next_batch(); }); !done)
      die({ErrorCode::kSystem, done.error().what});
    take(static_cast<size_t>(runtime_.steps_in_flight()) - 1);
  }
  void finish() {
    if (step_) take(0);
    runtime_.synchronize();
  }
  double last_loss() const { return last_loss_; }

  // What a layer attends with on a batch of held-out text (of random tokens without a data set),
  // and the blocks that it selects.
  ops::AttentionInputs attention_inputs(int64_t layer) {
    data::Batch batch = *batches_.front();
    if (dataset_) {
      const data::BatchShape shape{spec_.train.sequence_length, spec_.train.micro_batch};
      batch = or_die(data::EvaluationSet::open(dataset_, shape, spec_.train.micro_batch)).batch(0);
    }
    const at::Tensor tokens =
        at::from_blob(const_cast<int64_t*>(batch.inputs.data()),
                      {batch.rows, batch.sequence_length}, at::TensorOptions().dtype(at::kLong))
            .to(runtime_.device());
    return model_.attention_inputs(tokens, std::nullopt, layer);
  }

private:
  static std::optional<int64_t> separator(const spec::RunSpec& spec,
                                          const dataset::Dataset* dataset) {
    if (!spec.data.document_mask) return std::nullopt;
    if (dataset == nullptr) return spec.model.vocabulary - 1;
    return dataset->manifest().tokenizer.separator;
  }

  static constexpr int kBatches = 4; // more than steps in flight

  train::PlannedModel planned(const spec::RunSpec& spec) const {
    train::PlannedModel planned = or_die(train::plan_model(
        spec, or_die(spec::resolve_toggles(spec.toggles)), runtime_.device(), precision_.bf16));
    if (layers_ != "auto") planned.config.fused_layers = layers_ == "fused";
    return planned;
  }
  void make_batches() {
    batches_.clear();
    next_ = 0;
    for (int i = 0; i < kBatches; ++i) {
      auto batch = std::make_shared<data::Batch>(
          data::make_batch(spec_.train.micro_batch, spec_.train.sequence_length,
                           [this](size_t bytes) { return runtime_.allocate_host(bytes); }));
      batch->rows = spec_.train.micro_batch;
      fill(*batch);
      batches_.push_back(std::move(batch));
    }
  }
  void fill(data::Batch& batch) {
    if (!dataset_) {
      fill_at_random(reinterpret_cast<int64_t*>(batch.memory.get()),
                     batch.inputs.size() + batch.targets.size());
      return;
    }
    const auto& tokens = dataset_->tokens(dataset::Split::kTrain);
    const int64_t samples = data::sample_count(tokens.size(), batch.sequence_length);
    if (samples < 1) die({ErrorCode::kInvalidArgument, "the data set is shorter than a sequence"});
    std::vector<data::SequenceAddress> rows;
    for (int64_t row = 0; row < batch.rows; ++row) {
      const int64_t sample = sample_++ % samples;
      rows.push_back({sample, 0, sample, sample * batch.sequence_length});
    }
    data::fill_batch(tokens, rows, batch);
  }
  // With documents: of 16 to 2,047 tokens, as many between any length and its double.
  void fill_at_random(int64_t* tokens, size_t count) {
    const std::optional<int64_t> begins = separator(spec_, nullptr);
    const auto vocabulary = uint64_t(begins.value_or(spec_.model.vocabulary));
    std::uniform_real_distribution<double> exponent(4, 11);
    size_t left = 0; // of the document
    for (size_t t = 0; t < count; ++t) {
      const bool first = begins && left == 0;
      if (first) left = static_cast<size_t>(std::exp2(exponent(generator_)));
      tokens[t] = first ? *begins : static_cast<int64_t>(generator_() % vocabulary);
      if (begins) --left;
    }
  }
  // Random tokens are as good the next time; text is read on.
  const std::shared_ptr<data::Batch>& next_batch() {
    const std::shared_ptr<data::Batch>& batch = batches_[next_ % batches_.size()];
    if (dataset_ && next_ >= batches_.size()) fill(*batch);
    ++next_;
    return batch;
  }
  void take(size_t leave) {
    while (step_->in_flight() > leave)
      last_loss_ = step_->take().loss();
  }

  spec::RunSpec spec_;
  runtime::Runtime& runtime_;
  std::string layers_;
  train::Precision precision_;
  model::LanguageModel model_;
  train::PhaseClock clock_;
  train::BatchLoss loss_;
  train::GateMeans gates_;
  std::unique_ptr<comm::Collectives> collectives_ = comm::make_single_rank_collectives();
  std::optional<train::FlatState> state_;
  StepMarks marks_;
  std::optional<train::TrainStep> step_;
  std::shared_ptr<const dataset::Dataset> dataset_;
  std::mt19937_64 generator_{1};
  int64_t sample_ = 0;
  std::vector<std::shared_ptr<data::Batch>> batches_;
  size_t next_ = 0;
  uint64_t count_ = 0; // steps made
  double last_loss_ = 0;
};

// The parameters are views of flat buffers with hooks once prepare() has been called; parts are
// timed before.
ordered_json time_parts(const Options& options, runtime::Runtime& runtime,
                        const spec::RunSpec& spec, Training& training) {
  ordered_json parts;
  for (const bench::PartTime& part : bench::time_parts(
           training.model(), runtime, spec.train.micro_batch, spec.train.sequence_length,
           static_cast<int>(std::max<int64_t>(3, options.steps / 4))))
    parts[part.name] = part.milliseconds;
  return parts;
}

ordered_json measure(const Options& options, runtime::Runtime& runtime, const spec::RunSpec& spec,
                     Training& training, const std::string& graphs) {
  constexpr int64_t kLeastSteps = 5;
  runtime.reset_peak_memory();
  Stopwatch watch(runtime.device());
  std::vector<double> host;
  MonotonicTime warm = MonotonicTime::now();
  for (int64_t i = 0; i < options.steps + kWarmUpSteps; ++i) {
    if (i == kWarmUpSteps) warm = MonotonicTime::now();
    if (i >= kWarmUpSteps + kLeastSteps &&
        to_seconds(MonotonicTime::now() - warm) > options.row_seconds)
      break;
    const MonotonicTime begin = MonotonicTime::now();
    training.step(watch);
    host.push_back(to_seconds(MonotonicTime::now() - begin) * 1e3);
  }
  training.finish();
  const runtime::DeviceMemory memory = runtime.memory();
  if (!options.trace.empty())
    bench::write_trace(options.trace, runtime.device(), [&] {
      training.step(watch);
      training.step(watch);
      training.finish();
    });

  // A step: from its begin to the next one's, so that what the device waits for the host counts.
  std::vector<double> whole, forward, backward, optimizer;
  for (size_t i = kWarmUpSteps; i < host.size(); ++i) {
    if (i + 1 < host.size()) whole.push_back(watch.milliseconds(4 * i, 4 * i + 4));
    forward.push_back(watch.milliseconds(4 * i, 4 * i + 1));
    backward.push_back(watch.milliseconds(4 * i + 1, 4 * i + 2));
    optimizer.push_back(watch.milliseconds(4 * i + 2, 4 * i + 3));
  }
  if (whole.empty())
    whole.push_back(watch.milliseconds(4 * (host.size() - 1), 4 * host.size() - 1));
  const bench::Spread step = bench::spread_of(whole);
  const estimate::Arithmetic arithmetic = estimate::arithmetic(spec);
  const double peak = estimate::peak_bf16_flops(runtime.device_name());
  return {{"attention", spec::name_of(spec.model.attention)},
          {"sequence", spec.train.sequence_length},
          {"tokens", spec.tokens_per_step()},
          {"layers", training.model().config().fused_layers ? "fused" : "composed"},
          {"kernels", training.kernels_in_effect()},
          {"compute", training.computes_in()},
          {"graphs", graphs},
          {"graphs_recorded", training.graphs()},
          {"steps", whole.size()},
          {"tokens_per_second", static_cast<double>(spec.tokens_per_step()) / step.median * 1e3},
          {"step_ms", {{"median", step.median}, {"p10", step.low}, {"p90", step.high}}},
          {"forward_ms", bench::spread_of(forward).median},
          {"backward_ms", bench::spread_of(backward).median},
          {"optimizer_ms", bench::spread_of(optimizer).median},
          {"tflop_a_step", arithmetic.total() / 1e12},
          {"mfu", peak > 0 ? ordered_json(arithmetic.total() / (step.median / 1e3) / peak)
                           : ordered_json(nullptr)},
          {"peak_allocated_gib", static_cast<double>(memory.peak) / kGiB},
          {"reserved_gib", static_cast<double>(memory.reserved) / kGiB},
          {"loss", training.last_loss()}};
}

constexpr const char* kHeading = "         S  tokens/s  ms a step (p10-p90)        forward "
                                 "backward optimizer  GiB (reserved)   MFU  "
                                 "kernels, layers, graphs";

void print_line(const ordered_json& r) {
  std::printf("%-5s %6lld %9.0f  %8.2f (%.2f-%.2f) %12.2f %8.2f %9.2f  %6.2f (%6.2f) %4.1f %%  %s, "
              "%s, %s\n",
              r["attention"].get<std::string>().c_str(),
              static_cast<long long>(r["sequence"].get<int64_t>()),
              r["tokens_per_second"].get<double>(), r["step_ms"]["median"].get<double>(),
              r["step_ms"]["p10"].get<double>(), r["step_ms"]["p90"].get<double>(),
              r["forward_ms"].get<double>(), r["backward_ms"].get<double>(),
              r["optimizer_ms"].get<double>(), r["peak_allocated_gib"].get<double>(),
              r["reserved_gib"].get<double>(),
              r["mfu"].is_null() ? 0.0 : 100 * r["mfu"].get<double>(),
              r["kernels"].get<std::string>().c_str(), r["layers"].get<std::string>().c_str(),
              r["graphs"].get<std::string>().c_str());
  if (!r.contains("parts_ms")) return;
  std::printf("      parts, ms:");
  for (const auto& [name, value] : r["parts_ms"].items())
    std::printf("  %s %.2f", name.c_str(), value.get<double>());
  std::printf("\n");
}

void save_attention(const Options& options, Training& training) {
  const model::ModelConfig& config = training.model().config();
  const int64_t layer = options.save_layer < 0 ? config.layers / 2 : options.save_layer;
  if (layer >= config.layers)
    die({ErrorCode::kInvalidArgument, "--save-layer " + std::to_string(layer + 1) +
                                          ": the model has " + std::to_string(config.layers) +
                                          " layers"});
  const ops::AttentionInputs inputs = training.attention_inputs(layer);
  if (const Status written = bench::write_tensors(options.save_attention, bench::to_named(inputs));
      !written)
    die(written.error());
  std::fprintf(stderr, "layer %lld, %s tokens: %s\n", static_cast<long long>(layer + 1),
               options.data.empty() ? "random" : "held-out", options.save_attention.c_str());
}

// All rows of one kind of model; one model goes through all lengths.
class Rows {
public:
  Rows(const Options& options, runtime::Runtime& runtime,
       std::shared_ptr<const dataset::Dataset> dataset)
      : options_(options), runtime_(runtime), dataset_(std::move(dataset)) {}

  void run(const std::string& attention, const std::string& layers) {
    std::unique_ptr<Training> training;
    for (const int64_t sequence : options_.sequences) {
      const spec::RunSpec spec =
          bench::spec_of(options_, attention, sequence, runtime_.device().is_cuda());
      ordered_json parts;
      for (const std::string& graphs : options_.graphs) {
        if (to_seconds(MonotonicTime::now() - begin_) > options_.seconds) {
          ++left_out_;
          continue;
        }
        if (!training || !training->serves(spec) || (options_.parts && parts.empty())) {
          training.reset(); // before the next one needs its memory
          training = std::make_unique<Training>(spec, runtime_, layers, dataset_);
          if (options_.parts) parts = time_parts(options_, runtime_, spec, *training);
          training->prepare();
          if (!options_.checkpoint.empty()) training->load(options_.checkpoint);
        }
        training->use(spec, graphs == "on");
        ordered_json result = measure(options_, runtime_, spec, *training, graphs);
        if (options_.parts) result["parts_ms"] = parts;
        if (options_.json) {
          std::printf("%s\n", result.dump().c_str());
        } else {
          print_line(result);
        }
        std::fflush(stdout);
      }
    }
    if (training && attention == "nsa" && !options_.save_attention.empty())
      save_attention(options_, *training);
  }
  int left_out() const { return left_out_; }

private:
  const Options& options_;
  runtime::Runtime& runtime_;
  std::shared_ptr<const dataset::Dataset> dataset_;
  const MonotonicTime begin_ = MonotonicTime::now();
  int left_out_ = 0;
};

int run(int argc, char** argv) {
  const Options options = bench::parse_options(argc, argv);
  const spec::RunSpec first =
      bench::spec_of(options, options.attention.at(0), options.sequences.at(0), false);
  if (options.initial_values) {
    bench::time_initial_values(first);
    return 0;
  }
  runtime::Request request;
  request.device = first.parallel.device;
  request.threads = static_cast<int>(first.train.threads);
  request.deterministic = first.train.deterministic;
  request.graphs =
      std::find(options.graphs.begin(), options.graphs.end(), "on") != options.graphs.end();
  const auto runtime = or_die(runtime::open_runtime(request));
  if (request.graphs && !runtime->why_no_graphs().empty())
    die({ErrorCode::kInvalidArgument, "--graphs on: " + runtime->why_no_graphs(),
         "leave it out, or run on a GPU"});
  if (runtime->device().is_cpu() && !options.sizes_given)
    die({ErrorCode::kInvalidArgument, "there is no GPU here, and the M7C takes hours on a CPU",
         "give sizes, as the last but one example of nsa-bench model --help does"});
  std::shared_ptr<const dataset::Dataset> dataset;
  if (!options.data.empty()) {
    dataset = or_die(dataset::Dataset::open(options.data, dataset::Check::kSizes));
    if (dataset->manifest().tokenizer.vocabulary_size > first.model.vocabulary)
      die({ErrorCode::kInvalidArgument, "the data set has more tokens than the model",
           "set model.vocabulary to at least " +
               std::to_string(dataset->manifest().tokenizer.vocabulary_size)});
  }
  const std::string build = build_info().version + "+" + build_info().commit;
  if (options.json) {
    std::printf("%s\n", ordered_json{{"device", runtime->device_name()},
                                     {"versions", runtime->versions()},
                                     {"build", build},
                                     {"layers", first.model.layers},
                                     {"dimension", first.model.dimension}}
                            .dump()
                            .c_str());
  } else {
    std::string versions;
    for (const auto& [name, version] : runtime->versions())
      versions += ", " + name + " " + version;
    std::printf(
        "%s%s, nsa-bench %s\n%lld layers of %lld, %lld tokens a micro-batch or one sequence, "
        "AdamW included, peak memory allocated (reserved)\n%s\n",
        runtime->device_name().c_str(), versions.c_str(), build.c_str(),
        static_cast<long long>(first.model.layers), static_cast<long long>(first.model.dimension),
        static_cast<long long>(options.tokens), kHeading);
  }
  std::fflush(stdout);
  Rows rows(options, *runtime, dataset);
  for (const std::string& attention : options.attention)
    for (const std::string& layers : options.layers)
      rows.run(attention, layers);
  if (rows.left_out() > 0)
    std::fprintf(stderr, "%d rows were left out: --seconds %.0f were over\n", rows.left_out(),
                 options.seconds);
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const c10::Error& error) {
    die({ErrorCode::kSystem, error.what_without_backtrace()});
  } catch (const std::exception& error) {
    die({ErrorCode::kSystem, error.what()});
  }
}
