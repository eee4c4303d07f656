#include "bench/model/rows.h"

#include "bench/model/parts.h"
#include "bench/model/rank_figures.h"
#include "bench/model/table.h"
#include "bench/model/trace.h"
#include "bench/saved_attention/saved_attention.h"
#include "common/estimate/device_peak.h"
#include "common/estimate/estimate.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdio>

namespace nsa::bench {

namespace {

using nlohmann::ordered_json;

constexpr int64_t kLeastSteps = 5;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Milliseconds of the steps after the warm-up.
struct StepTimes {
  std::vector<double> whole, forward, backward, optimizer;
};

// A step lasts from its begin to the next one's, so it includes the time in which the device waits
// for the host.
StepTimes times_of(Stopwatch& watch, size_t warm_up, size_t steps) {
  StepTimes times;
  for (size_t i = warm_up; i < steps; ++i) {
    if (i + 1 < steps) times.whole.push_back(watch.milliseconds(4 * i, 4 * i + 4));
    times.forward.push_back(watch.milliseconds(4 * i, 4 * i + 1));
    times.backward.push_back(watch.milliseconds(4 * i + 1, 4 * i + 2));
    times.optimizer.push_back(watch.milliseconds(4 * i + 2, 4 * i + 3));
  }
  if (times.whole.empty())
    times.whole.push_back(watch.milliseconds(4 * (steps - 1), 4 * steps - 1));
  return times;
}

RankFigures figures_of(const StepTimes& times, const std::vector<train::StepResult>& results,
                       size_t warm_up, const runtime::DeviceMemory& memory) {
  RankFigures own;
  own.step_milliseconds = spread_of(times.whole).median;
  double seconds = 0, exposed = 0;
  for (size_t i = warm_up; i < results.size(); ++i) {
    seconds += results[i].seconds;
    exposed += results[i].exposed_communication_seconds;
  }
  own.communication_share = seconds > 0 ? exposed / seconds : 0;
  own.peak_allocated_gib = static_cast<double>(memory.peak) / kGiB;
  own.reserved_gib = static_cast<double>(memory.reserved) / kGiB;
  return own;
}

// Parts must be timed before prepare(), which turns the parameters into views of flat buffers with
// hooks.
ordered_json parts_of(const Options& options, runtime::Runtime& runtime, const spec::RunSpec& spec,
                      Training& training) {
  ordered_json parts;
  for (const PartTime& part :
       time_parts(training.model(), runtime, spec.train.micro_batch, spec.train.sequence_length,
                  static_cast<int>(std::max<int64_t>(3, options.steps / 4))))
    parts[part.name] = part.milliseconds;
  return parts;
}

void save_attention(const Options& options, Training& training) {
  const model::ModelConfig& config = training.model().config();
  const int64_t layer = options.save_layer < 0 ? config.layers / 2 : options.save_layer;
  if (layer >= config.layers)
    die({ErrorCode::kInvalidArgument, "--save-layer " + std::to_string(layer + 1) +
                                          ": the model has " + std::to_string(config.layers) +
                                          " layers"});
  const ops::AttentionInputs inputs = training.attention_inputs(layer);
  if (const Status written = write_tensors(options.save_attention, to_named(inputs)); !written)
    die(written.error());
  std::fprintf(stderr, "layer %lld, %s tokens: %s\n", static_cast<long long>(layer) + 1,
               options.data.empty() ? "random" : "held-out", options.save_attention.c_str());
}

} // namespace

bool Rows::agree(bool yes) {
  const at::Tensor word =
      at::full({1}, yes ? 1.0 : 0.0, at::TensorOptions().device(runtime_.device()));
  if (auto done = collectives_.broadcast(word, 0, {agreements_++, comm::Kind::kAgreement, 0});
      !done)
    die(done.error());
  return word.item<float>() > 0;
}

ordered_json Rows::measure(const spec::RunSpec& spec, Training& training, Graphs graphs) {
  runtime_.reset_peak_memory();
  Stopwatch watch(runtime_.device());
  MonotonicTime warm = MonotonicTime::now();
  size_t steps = 0;
  const int64_t warm_up = options_.warm_up;
  for (int64_t i = 0; i < options_.steps + warm_up && !training.stopped(); ++i) {
    if (i == warm_up) warm = MonotonicTime::now();
    if (collectives_.rank() == 0 && i >= warm_up + kLeastSteps &&
        to_seconds(MonotonicTime::now() - warm) > options_.row_seconds)
      training.ask_to_stop();
    training.step(watch);
    ++steps;
  }
  training.finish();
  const runtime::DeviceMemory memory = runtime_.memory();
  const std::vector<train::StepResult> results = training.results();
  const auto two_steps = [&] {
    training.step(watch);
    training.step(watch);
    training.finish();
  };
  if (!options_.trace.empty()) {
    if (collectives_.rank() == 0)
      write_trace(options_.trace, runtime_.device(), two_steps);
    else
      two_steps();
  }

  const StepTimes times = times_of(watch, static_cast<size_t>(warm_up), steps);
  const std::vector<RankFigures> ranks =
      gather_figures(figures_of(times, results, static_cast<size_t>(warm_up), memory), collectives_,
                     runtime_.device(), agreements_++);
  const Spread step = spread_of(times.whole);
  const double slowest =
      std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
        return a.step_milliseconds < b.step_milliseconds;
      })->step_milliseconds;
  const double per_second = static_cast<double>(spec.tokens_per_step()) / slowest * 1e3;
  const auto world = static_cast<double>(ranks.size());
  const double flop = estimate::arithmetic(spec).total();
  const double peak = estimate::peak_bf16_flops(runtime_.device_name());
  ordered_json mfu;
  if (peak > 0) mfu = flop / (slowest / 1e3) / (peak * world);
  return {{"attention", spec::name_of(spec.model.attention)},
          {"sequence", spec.train.sequence_length},
          {"ranks", ranks.size()},
          {"tokens", spec.tokens_per_step()},
          {"layers", training.model().config().fused_layers ? "fused" : "composed"},
          {"kernels", training.kernels_in_effect()},
          {"compute", training.computes_in()},
          {"graphs", name_of(graphs)},
          {"graphs_recorded", training.graphs()},
          {"steps", times.whole.size()},
          {"tokens_per_second", per_second},
          {"tokens_per_second_a_rank", per_second / world},
          {"communication_share", ranks.front().communication_share},
          {"step_ms", {{"median", step.median}, {"p10", step.low}, {"p90", step.high}}},
          {"forward_ms", spread_of(times.forward).median},
          {"backward_ms", spread_of(times.backward).median},
          {"optimizer_ms", spread_of(times.optimizer).median},
          {"tflop_a_step", flop / 1e12},
          {"mfu", mfu},
          {"peak_allocated_gib", static_cast<double>(memory.peak) / kGiB},
          {"reserved_gib", static_cast<double>(memory.reserved) / kGiB},
          {"steps_made", results.size()},
          {"first_loss", results.front().loss()},
          {"loss", results.back().loss()},
          {"by_rank", to_json(ranks)}};
}

void Rows::run(spec::Attention attention, Layers layers) {
  const bool prints = collectives_.rank() == 0;
  std::unique_ptr<Training> training;
  for (const int64_t sequence : options_.sequences) {
    const spec::RunSpec spec = spec_of(options_, attention, sequence, runtime_.device().is_cuda());
    ordered_json parts;
    for (const Graphs graphs : options_.graphs) {
      if (agree(to_seconds(MonotonicTime::now() - begin_) > options_.seconds)) {
        ++left_out_;
        continue;
      }
      if (!training || !training->serves(spec) || (options_.parts && parts.empty())) {
        training.reset(); // frees its memory before the next one allocates
        training = std::make_unique<Training>(spec, runtime_, collectives_, layers, dataset_);
        if (options_.parts) parts = parts_of(options_, runtime_, spec, *training);
        training->prepare();
        if (!options_.checkpoint.empty()) training->load(options_.checkpoint);
      }
      training->use(spec, graphs == Graphs::kOn);
      ordered_json row = measure(spec, *training, graphs);
      if (options_.parts) row["parts_ms"] = parts;
      if (prints) print_row(row, options_.json);
    }
  }
  if (prints && training && attention == spec::Attention::kNsa && !options_.save_attention.empty())
    save_attention(options_, *training);
}

} // namespace nsa::bench
