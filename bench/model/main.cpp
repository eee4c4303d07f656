// nsa-bench-model: training steps of a whole model on this machine, as the worker makes them
// (random tokens; loss, backward, gradient buffers, AdamW), without a daemon.
//
//   nsa-bench-model [--attention nsa,dense] [--sequence 2048,8192] [--tokens 32768]
//                   [--layers composed,fused] [--steps 20] [--parts] [--json]
//                   [--trace FILE] [--set KEY=VALUE]...
//
// One line a combination; --json makes each line an object with everything that was measured, the
// first one what it ran on. --trace writes two further steps of the last combination as a trace.
// --set takes keys of the run file (docs/run-file.md). Times are of the device's events. MFU counts
// the model's own products and attended pairs against 989 TFLOP/s.
#include "bench/model/parts.h"
#include "bench/model/stopwatch.h"
#include "bench/model/trace.h"
#include "common/base/build_info.h"
#include "common/estimate/estimate.h"
#include "common/spec/parse.h"
#include "common/spec/toggles.h"
#include "worker/data/batch_builder.h"
#include "worker/train/gradient_reducer.h"
#include "worker/train/model_loss.h"
#include "worker/train/optimizer.h"
#include "worker/train/precision.h"
#include "worker/train/setup.h"

#include <ATen/ops/cat.h>
#include <cstdio>
#include <deque>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

namespace {

using namespace nsa;
using bench::Stopwatch;
using nlohmann::ordered_json;

constexpr double kPeakFlops = 989e12; // dense BF16 of an H100 or H200, by its datasheet
constexpr int kWarmUpSteps = 3;
constexpr size_t kTailWords = 4;
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

struct Options {
  std::vector<std::string> attention{"nsa"}, layers{"composed"}, overrides;
  std::vector<int64_t> sequences{2048};
  std::string trace;
  int64_t tokens = 32768;
  int steps = 20;
  bool parts = false, json = false;
};

std::vector<std::string> words(const std::string& list) {
  std::vector<std::string> all;
  std::stringstream stream(list);
  for (std::string word; std::getline(stream, word, ',');)
    all.push_back(word);
  return all;
}

int64_t number(const std::string& text) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (*end != '\0' || value < 1)
    die({ErrorCode::kInvalidArgument, "\"" + text + "\" is not a number from 1 up"});
  return value;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--parts" || name == "--json") {
      (name == "--parts" ? o.parts : o.json) = true;
      continue;
    }
    if (i + 1 == argc)
      die({ErrorCode::kInvalidArgument, name + " is unknown or needs a value",
           "usage: nsa-bench-model [--attention nsa,dense] [--sequence N,...] [--tokens N] "
           "[--layers composed,fused] [--steps N] [--parts] [--json] [--set KEY=VALUE]..."});
    const std::string value = argv[++i];
    if (name == "--attention")
      o.attention = words(value);
    else if (name == "--layers")
      o.layers = words(value);
    else if (name == "--set")
      o.overrides.push_back(value);
    else if (name == "--trace")
      o.trace = value;
    else if (name == "--tokens")
      o.tokens = number(value);
    else if (name == "--steps")
      o.steps = static_cast<int>(number(value));
    else if (name == "--sequence") {
      o.sequences.clear();
      for (const std::string& word : words(value))
        o.sequences.push_back(number(word));
    } else
      die({ErrorCode::kInvalidArgument, "unknown argument " + name});
  }
  for (const std::string& layers : o.layers)
    if (layers != "composed" && layers != "fused")
      die({ErrorCode::kInvalidArgument, "--layers takes composed and fused, not " + layers});
  return o;
}

spec::RunSpec spec_of(const Options& options, const std::string& attention, int64_t sequence) {
  std::vector<std::string> overrides{
      "data.path=none", "train.steps=1", "model.attention=" + attention,
      "train.sequence_length=" + std::to_string(sequence),
      "train.micro_batch=" + std::to_string(std::max<int64_t>(1, options.tokens / sequence))};
  for (const std::string& given : options.overrides)
    if (attention == "nsa" || !given.starts_with("toggles.attention.")) overrides.push_back(given);
  const spec::Parsed parsed = spec::parse_run_file("schema = 1\n", "bench.toml", overrides);
  if (!parsed.problems.empty())
    die({ErrorCode::kInvalidArgument, spec::format_problem(parsed.problems.front())});
  return parsed.spec;
}

// Training as the worker does it, a step at a time.
class Training {
public:
  Training(const spec::RunSpec& spec, runtime::Runtime& runtime, bool fused)
      : spec_(spec), runtime_(runtime),
        precision_(or_die(train::choose_precision(spec.precision, runtime.why_bf16_is_slow()))),
        model_(config(fused), runtime.device(), precision_.bf16 ? at::kBFloat16 : at::kFloat, 1),
        clock_(or_die(progress::Page::create(0, 1))),
        loss_(train::make_loss(model_, runtime.device(), std::nullopt)) {
    std::mt19937_64 generator(1);
    for (int i = 0; i < 4; ++i) {
      auto batch = std::make_shared<data::Batch>(
          data::make_batch(spec.train.micro_batch, spec.train.sequence_length,
                           [this](size_t bytes) { return runtime_.allocate_host(bytes); }));
      batch->rows = spec.train.micro_batch;
      auto* tokens = reinterpret_cast<int64_t*>(batch->memory.get());
      for (size_t t = 0; t < batch->inputs.size() + batch->targets.size(); ++t)
        tokens[t] = static_cast<int64_t>(generator() % uint64_t(spec.model.vocabulary));
      batches_.push_back(std::move(batch));
    }
  }

  const model::LanguageModel& model() const { return model_; }
  std::string computes_in() const { return precision_.name(); }

  // Afterwards parameters have hooks and live in flat buffers.
  void prepare() {
    const auto bucket = static_cast<size_t>(spec_.parallel.bucket_mib * 1024.0 * 1024.0);
    state_.emplace(train::parameters_of(model_), bucket, kTailWords, precision_.mode);
    reducer_.emplace(*state_, *collectives_, clock_, train::ReducerOptions{});
    optimizer_.emplace(*state_, spec_.train);
  }

  // Marks: forward begins, backward begins, optimizer begins, end. Waits for the step before last.
  void step(Stopwatch& watch) {
    ++step_;
    watch.mark();
    reducer_->begin_step(step_);
    at::Tensor total =
        at::zeros({}, at::TensorOptions().dtype(at::kFloat).device(runtime_.device()));
    for (int64_t m = 0; m < spec_.train.accumulate; ++m) {
      const at::Tensor loss = loss_(batches_[next_++ % batches_.size()]);
      if (m == 0) watch.mark();
      reducer_->begin_micro_step(m + 1 == spec_.train.accumulate);
      loss.backward();
      total.add_(loss.detach());
    }
    watch.mark();
    if (auto reduced = reducer_->finish_step(); !reduced)
      die({ErrorCode::kSystem, reduced.error().what});
    const at::Tensor norm = optimizer_->step(spec_.train.learning_rate, total);
    watch.mark();
    readings_.push_back(runtime_.read_later(at::stack({norm, total})));
    while (readings_.size() >= static_cast<size_t>(runtime_.steps_in_flight()))
      take();
  }
  void finish() {
    while (!readings_.empty())
      take();
    runtime_.synchronize();
  }
  double last_loss() const { return last_loss_; }

private:
  model::ModelConfig config(bool fused) const {
    const auto toggles = or_die(spec::resolve_toggles(spec_.toggles));
    model::ModelConfig config = or_die(train::model_config(spec_, toggles));
    config.fused_layers = fused;
    return config;
  }
  void take() {
    last_loss_ = readings_.front()->take()[1];
    readings_.pop_front();
  }

  const spec::RunSpec& spec_;
  runtime::Runtime& runtime_;
  train::Precision precision_;
  model::LanguageModel model_;
  train::PhaseClock clock_;
  train::BatchLoss loss_;
  std::unique_ptr<comm::Collectives> collectives_ = comm::make_single_rank_collectives();
  std::optional<train::FlatState> state_;
  std::optional<train::GradientReducer> reducer_;
  std::optional<train::Optimizer> optimizer_;
  std::vector<std::shared_ptr<data::Batch>> batches_;
  std::deque<std::unique_ptr<runtime::Reading>> readings_;
  size_t next_ = 0;
  uint64_t step_ = 0;
  double last_loss_ = 0;
};

std::string kernels_of(const Training& training, at::Device device, int64_t sequence) {
  if (training.model().config().attention == model::Attention::kDense)
    return "sdpa " + bench::dense_backend(training.model(), device, sequence);
  return std::string(kernels_name(training.model().config().kernels));
}

ordered_json measure(const Options& options, runtime::Runtime& runtime, const spec::RunSpec& spec,
                     const std::string& layers) {
  runtime.reset_peak_memory();
  Training training(spec, runtime, layers == "fused");
  ordered_json parts;
  if (options.parts)
    for (const bench::PartTime& part :
         bench::time_parts(training.model(), runtime, spec.train.micro_batch,
                           spec.train.sequence_length, std::max(3, options.steps / 4)))
      parts[part.name] = part.milliseconds;
  runtime.reset_peak_memory();
  training.prepare();
  Stopwatch watch(runtime.device());
  std::vector<double> host;
  for (int i = 0; i < options.steps + kWarmUpSteps; ++i) {
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
  ordered_json result{
      {"attention", spec.model.attention},
      {"sequence", spec.train.sequence_length},
      {"tokens", spec.tokens_per_step()},
      {"layers", layers},
      {"kernels", kernels_of(training, runtime.device(), spec.train.sequence_length)},
      {"compute", training.computes_in()},
      {"steps", whole.size()},
      {"tokens_per_second", static_cast<double>(spec.tokens_per_step()) / step.median * 1e3},
      {"step_ms", {{"median", step.median}, {"p10", step.low}, {"p90", step.high}}},
      {"forward_ms", bench::spread_of(forward).median},
      {"backward_ms", bench::spread_of(backward).median},
      {"optimizer_ms", bench::spread_of(optimizer).median},
      {"tflop_a_step", arithmetic.total() / 1e12},
      {"mfu", arithmetic.total() / (step.median / 1e3) / kPeakFlops},
      {"peak_allocated_gib", static_cast<double>(memory.peak) / kGiB},
      {"reserved_gib", static_cast<double>(memory.reserved) / kGiB},
      {"loss", training.last_loss()}};
  if (options.parts) result["parts_ms"] = parts;
  return result;
}

void print_line(const ordered_json& r) {
  std::printf("%-5s %6lld  %-8s %-12s %9.0f tok/s  %8.2f ms (%.2f-%.2f)  forward %.2f backward "
              "%.2f optimizer %.2f  MFU %4.1f %%  peak %.2f GiB, reserved %.2f  loss %.3f\n",
              r["attention"].get<std::string>().c_str(),
              static_cast<long long>(r["sequence"].get<int64_t>()),
              r["layers"].get<std::string>().c_str(), r["kernels"].get<std::string>().c_str(),
              r["tokens_per_second"].get<double>(), r["step_ms"]["median"].get<double>(),
              r["step_ms"]["p10"].get<double>(), r["step_ms"]["p90"].get<double>(),
              r["forward_ms"].get<double>(), r["backward_ms"].get<double>(),
              r["optimizer_ms"].get<double>(), 100 * r["mfu"].get<double>(),
              r["peak_allocated_gib"].get<double>(), r["reserved_gib"].get<double>(),
              r["loss"].get<double>());
  if (!r.contains("parts_ms")) return;
  std::printf("      parts, ms:");
  for (const auto& [name, value] : r["parts_ms"].items())
    std::printf("  %s %.2f", name.c_str(), value.get<double>());
  std::printf("\n");
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  const spec::RunSpec first = spec_of(options, options.attention.at(0), options.sequences.at(0));
  runtime::Request request;
  request.device = first.parallel.device;
  request.threads = static_cast<int>(first.train.threads);
  request.deterministic = first.train.deterministic;
  const auto runtime = or_die(runtime::open_runtime(request));
  ordered_json machine{{"device", runtime->device_name()},
                       {"versions", runtime->versions()},
                       {"build", build_info().version + "+" + build_info().commit}};
  std::printf("%s\n", machine.dump().c_str());
  for (const std::string& attention : options.attention)
    for (const int64_t sequence : options.sequences)
      for (const std::string& layers : options.layers) {
        const spec::RunSpec spec = spec_of(options, attention, sequence);
        const ordered_json result = measure(options, *runtime, spec, layers);
        if (options.json)
          std::printf("%s\n", result.dump().c_str());
        else
          print_line(result);
        std::fflush(stdout);
      }
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
