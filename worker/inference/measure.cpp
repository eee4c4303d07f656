#include "worker/inference/measure.h"

#include "common/dataset/generations.h"
#include "common/progress/page.h"
#include "worker/comm/collectives.h"
#include "worker/data/evaluation.h"
#include "worker/inference/needle_counter.h"
#include "worker/link/phase_clock.h"
#include "worker/model/model_loss.h"
#include "worker/trainer/evaluator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace nsa::inference {

namespace {

Status check_vocabulary(const dataset::Dataset& dataset, const spec::RunSpec& spec) {
  const int64_t vocabulary = dataset.manifest().tokenizer.vocabulary_size;
  if (vocabulary <= spec.model.vocabulary) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the data set in " + dataset.folder().string() + " has " +
                  std::to_string(vocabulary) + " token ids, the model " +
                  std::to_string(spec.model.vocabulary),
              "evaluate on a data set of the model's tokenizer");
}

} // namespace

std::vector<wire::PositionLoss> by_range(const std::vector<double>& mean) {
  std::vector<wire::PositionLoss> ranges;
  const auto size = static_cast<int64_t>(mean.size());
  for (int64_t from = 0, to = 1; from < size; from = to, to = std::min(size, 2 * to)) {
    double sum = 0;
    for (int64_t i = from; i < to; ++i)
      sum += mean[static_cast<size_t>(i)];
    ranges.push_back({from, to, sum / static_cast<double>(to - from)});
  }
  return ranges;
}

Result<wire::ModelEnd> measure(SavedModel& saved, const wire::ModelRequest& request) {
  std::vector<data::Source> sources;
  for (const wire::DataFolder& folder : request.data) {
    // The run's own data set is read as the run reads it: the shards that have arrived, with the
    // first held-out shard.
    const bool follows = saved.spec.data.follow && folder.path == saved.spec.data.path;
    NSA_TRY_ASSIGN(auto opened,
                   follows ? dataset::open_arrived(folder.path, dataset::Check::kChecksums)
                           : dataset::Dataset::open(folder.path, dataset::Check::kChecksums));
    NSA_TRY(check_vocabulary(*opened, saved.spec));
    sources.push_back({std::move(opened), folder.weight});
  }
  if (sources.empty()) return fail(ErrorCode::kInvalidArgument, "no data set is named");
  data::BatchShape shape;
  shape.sequence_length = request.sequence_length;
  shape.micro_batch = saved.spec.train.micro_batch;
  NSA_TRY_ASSIGN(const auto set, data::EvaluationSet::open(sources, shape, request.sequences));
  std::optional<int64_t> separator;
  if (saved.spec.data.document_mask)
    separator = sources.front().dataset->manifest().tokenizer.separator;
  NSA_TRY_ASSIGN(auto page, progress::Page::create(0, 1));
  train::PhaseClock clock(std::move(page));
  const auto collectives = comm::make_single_rank_collectives();
  const at::Device device = saved.runtime->device();
  at::Tensor sums =
      at::zeros({shape.sequence_length}, at::TensorOptions().dtype(at::kDouble).device(device));
  const train::TokenLosses losses = train::make_token_losses(*saved.model, device, separator);
  const auto add_up = [&](const std::shared_ptr<const data::Batch>& batch) {
    const at::Tensor loss = losses(batch);
    sums.add_(loss.sum(at::IntArrayRef{0}, false, at::kDouble));
    return loss;
  };
  const MonotonicTime begin = MonotonicTime::now();
  const train::TokenLosses watched = add_up;
  auto loss = train::evaluate({set, watched, *saved.runtime, *collectives, clock, {}}, 0);
  if (!loss) return fail(loss.error().error);
  wire::ModelEnd end;
  if (request.needles > 0) {
    NSA_TRY_ASSIGN(const auto counter, NeedleCounter::open(sources, request.needles));
    end.needles = counter.count(*saved.model, device);
  }
  end.seconds = to_seconds(MonotonicTime::now() - begin);
  end.loss = loss->loss;
  if (sources.size() > 1) end.sources = loss->of_source;
  end.sequences = set.sequences();
  end.sequence_length = shape.sequence_length;
  end.data_digest = data::digest_of(sources);
  const at::Tensor mean = sums.div_(static_cast<double>(set.sequences())).to(at::kCPU);
  const double* values = mean.const_data_ptr<double>();
  end.positions = by_range({values, values + shape.sequence_length});
  return end;
}

} // namespace nsa::inference
