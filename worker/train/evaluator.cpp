#include "worker/train/evaluator.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

namespace nsa::train {

Attempt<double> evaluate(const data::EvaluationSet& set, const BatchLoss& loss, uint64_t step,
                         runtime::Runtime& runtime, comm::Collectives& collectives,
                         PhaseClock& clock) {
  const at::NoGradGuard no_grad;
  // {sum of losses weighted by sequences, sequences}, FP64: thousands of batches add up exactly
  // enough.
  const at::Tensor sums =
      at::zeros({2}, at::TensorOptions().dtype(at::kDouble).device(runtime.device()));
  for (int64_t b = 0; b < set.batches(); ++b) {
    clock.enter(progress::Phase::kEvaluation, static_cast<uint64_t>(b));
    const auto batch = std::make_shared<const data::Batch>(set.batch(b));
    if (batch->rows == 0) continue; // the last round may not reach every rank
    sums[0].add_(loss(batch).to(at::kDouble), static_cast<double>(batch->rows));
    sums[1].add_(static_cast<double>(batch->rows));
  }
  runtime.synchronize(); // what is waited for from here on is the peers
  clock.enter_collect(progress::Phase::kEvaluation);
  clock.count_collective();
  if (auto o = collectives.all_reduce_sum(sums, {step, comm::Kind::kEvaluation, 0})->wait(); !o)
    return failed(o.error());
  const std::vector<double> total = runtime.read_later(sums)->take();
  clock.enter(progress::Phase::kEvaluation);
  return total[0] / total[1];
}

} // namespace nsa::train
