#include "worker/trainer/evaluator.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/safetensors/safetensors.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <cstdio>

namespace nsa::train {

namespace {

// TokenTable holds a rank's positions, targets and losses, in the order of its batches.
class TokenTable {
public:
  // The losses are valid once the device has completed the enqueued work.
  void add(const data::Batch& batch, const at::Tensor& losses, int64_t part,
           runtime::Runtime& runtime) {
    const int64_t length = losses.size(1), first = part * length;
    for (int64_t row = 0; row < batch.rows; ++row) {
      const auto begin = batch.targets.begin() + row * batch.sequence_length + first;
      targets_.insert(targets_.end(), begin, begin + length);
    }
    for (const data::SequenceAddress& row : batch.rows_from) {
      positions_.push_back(row.position + first);
      sources_.push_back(row.source);
    }
    losses_.push_back(runtime.allocate_host(losses.nbytes()));
    bytes_.push_back(losses.nbytes());
    runtime.copy_to_host(losses.contiguous(), losses_.back().get());
  }

  Status write(const std::filesystem::path& path, int64_t sequence_length) const {
    std::vector<std::byte> losses;
    for (size_t b = 0; b < losses_.size(); ++b)
      losses.insert(losses.end(), losses_[b].get(), losses_[b].get() + bytes_[b]);
    const auto rows = static_cast<int64_t>(positions_.size());
    const std::vector<safetensors::TensorView> tensors = {
        {"loss", safetensors::DataType::kF32, {rows, sequence_length}, losses},
        {"target",
         safetensors::DataType::kI64,
         {rows, sequence_length},
         std::as_bytes(std::span(targets_))},
        {"position", safetensors::DataType::kI64, {rows}, std::as_bytes(std::span(positions_))},
        {"source", safetensors::DataType::kI64, {rows}, std::as_bytes(std::span(sources_))}};
    NSA_TRY(make_folder(path.parent_path()));
    std::error_code error;
    const std::filesystem::path temporary = path.string() + ".tmp";
    if (auto written = safetensors::write(temporary, tensors, {}); !written) {
      std::filesystem::remove(temporary, error);
      return tl::unexpected(written.error());
    }
    std::filesystem::rename(temporary, path, error);
    if (error) return fail(ErrorCode::kInternal, "cannot rename " + temporary.string());
    return {};
  }

private:
  std::vector<int64_t> targets_, positions_, sources_;
  std::vector<std::shared_ptr<std::byte>> losses_; // one for each batch
  std::vector<size_t> bytes_;
};

// An attempt with more ranks may have left files of the same step. Their rows are in this attempt's
// files, too.
void remove_ranks_from(const std::filesystem::path& folder, int world) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    int rank = -1;
    if (std::sscanf(it->path().filename().c_str(), "rank-%d.", &rank) == 1 && rank >= world)
      std::filesystem::remove(it->path(), error);
  }
}

} // namespace

RankResult<HeldOutLoss> evaluate(const Evaluator& e, uint64_t step) {
  const at::NoGradGuard no_grad;
  const auto sources = static_cast<int64_t>(e.set.sources());
  // Layout: {sum of losses, number of tokens} of each source. FP64 is exact enough for millions of
  // tokens.
  const at::Tensor sums =
      at::zeros({2 * sources}, at::TensorOptions().dtype(at::kDouble).device(e.runtime.device()));
  TokenTable table;
  int64_t sequence_length = 0;
  for (int64_t b = 0; b < e.set.batches(); ++b) {
    e.clock.enter(progress::Phase::kEvaluation, static_cast<uint64_t>(b));
    const auto batch = std::make_shared<const data::Batch>(e.set.batch(b));
    sequence_length = batch->sequence_length / e.parts;
    if (batch->rows == 0) { // the last round may not reach every rank
      // Ranks of a context group exchange heads in each pass. All ranks number these exchanges
      // alike, so no rank skips a pass.
      if (e.parts > 1) e.losses(std::make_shared<data::Batch>(e.set.any_sequence()));
      continue;
    }
    const at::Tensor losses = e.losses(batch);
    const auto source = static_cast<int64_t>(e.set.source_of(b));
    sums[2 * source].add_(losses.sum(at::kDouble));
    sums[2 * source + 1].add_(static_cast<double>(losses.numel()));
    if (!e.keep_in.empty()) table.add(*batch, losses, e.part, e.runtime);
  }
  e.runtime.synchronize(); // from here on, the rank waits for its peers only
  if (!e.keep_in.empty()) {
    const auto path = e.keep_in / ("rank-" + std::to_string(e.collectives.rank()) + ".safetensors");
    if (auto written = table.write(path, sequence_length); !written)
      log::warning("train", "the held-out tokens' losses cannot be written: " +
                                written.error().what + "; training continues without them");
    if (e.collectives.rank() == 0) remove_ranks_from(e.keep_in, e.collectives.world());
  }
  e.clock.enter(progress::Phase::kAllReduceEvaluation);
  if (auto o = e.collectives.all_reduce_sum(sums, {step, comm::Kind::kEvaluation, 0})->wait(); !o)
    return failed(o.error());
  const std::vector<double> total = e.runtime.read_later(sums)->take();
  e.clock.enter(progress::Phase::kEvaluation);
  HeldOutLoss found;
  for (size_t source = 0; source < e.set.sources(); ++source)
    found.of_source.push_back(total[2 * source] / total[2 * source + 1]);
  found.loss = e.set.mixed(found.of_source);
  return found;
}

} // namespace nsa::train
