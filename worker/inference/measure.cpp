#include "worker/inference/measure.h"

#include "common/dataset/dataset.h"
#include "common/progress/page.h"
#include "worker/comm/collectives.h"
#include "worker/data/evaluation.h"
#include "worker/inference/needle.h"
#include "worker/link/phase_clock.h"
#include "worker/model/model_loss.h"
#include "worker/trainer/evaluator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace nsa::inference {

namespace {

Status check_vocabulary(const dataset::Dataset& dataset, const spec::RunSpec& spec) {
  const int64_t vocabulary = dataset.manifest().tokenizer.vocabulary_size;
  if (vocabulary <= spec.model.vocabulary) return {};
  return fail(ErrorCode::kInvalidArgument,
              "the data set has " + std::to_string(vocabulary) + " token ids, the model " +
                  std::to_string(spec.model.vocabulary),
              "evaluate on a data set of the model's tokenizer");
}

constexpr int64_t kPiece = 512; // of a document: its logits are FP32 over the vocabulary

// The most probable token at each answer of the document, with all true tokens before it.
std::vector<int64_t> answers_of(SavedModel& saved, const NeedleDocument& document,
                                int64_t vocabulary) {
  const auto count = static_cast<int64_t>(document.tokens.size());
  model::DecodeState state = saved.model->start_decoding(1, count);
  std::vector<int64_t> said;
  size_t next = 0;
  for (int64_t at = 0; at < count && next < document.answers.size(); at += kPiece) {
    const int64_t piece = std::min(kPiece, count - at);
    const at::Tensor ids =
        at::from_blob(const_cast<int64_t*>(document.tokens.data()) + at, {1, piece}, at::kLong)
            .clone()
            .to(saved.runtime->device());
    const at::Tensor best = saved.model->decode(state, ids)
                                .select(0, 0)
                                .narrow(1, 0, vocabulary)
                                .argmax(1)
                                .to(at::kCPU);
    // What is said at a position is the token behind it.
    for (; next < document.answers.size(); ++next) {
      const auto position = static_cast<int64_t>(document.answers[next]) - 1 - at;
      if (position >= piece) break;
      said.push_back(best[position].item<int64_t>());
    }
  }
  return said;
}

Result<std::vector<wire::NeedleCell>>
score_needles(SavedModel& saved, const std::vector<data::Source>& sources, int64_t most) {
  const at::NoGradGuard no_grad;
  NeedleScore score;
  for (const data::Source& source : sources) {
    if (!is_needle_set(source.dataset->manifest())) continue;
    NSA_TRY_ASSIGN(const auto tokenizer, source.dataset->load_tokenizer());
    for (const NeedleDocument& document : needle_documents(*source.dataset, *tokenizer, most))
      score.add(document, answers_of(saved, document, tokenizer->vocabulary_size()));
  }
  return score.cells();
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
    NSA_TRY_ASSIGN(auto opened, dataset::Dataset::open(folder.path, dataset::Check::kChecksums));
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
    NSA_TRY_ASSIGN(end.needles, score_needles(saved, sources, request.needles));
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
