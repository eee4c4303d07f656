#include "worker/step/state_gatherer.h"

#include <ATen/core/grad_mode.h>

namespace nsa::train {

comm::Outcome StateGatherer::gather(const std::vector<at::Tensor>& flat, uint64_t step,
                                    comm::Kind kind) {
  const at::NoGradGuard no_grad;
  std::vector<std::unique_ptr<comm::Pending>> under_way;
  uint32_t index = 0;
  for (const at::Tensor& tensor : flat)
    for (size_t b = 0; b < state_.plan().buckets.size(); ++b) {
      const Range of = state_.plan().parameters_of(b);
      if (of.count() == 0) continue;
      under_way.push_back(collectives_.all_gather(state_.range(tensor, of), {step, kind, index++}));
    }
  comm::Outcome outcome;
  for (const auto& pending : under_way)
    if (comm::Outcome one = pending->wait(); !one && outcome)
      outcome = one; // the first failure is the cause
  return outcome;
}

comm::Outcome StateGatherer::weights(uint64_t step, runtime::Stopwatch& waits) {
  waits.mark();
  comm::Outcome outcome =
      gather({state_.rounded_weights().value_or(state_.masters)}, step, comm::Kind::kWeights);
  waits.mark();
  return outcome;
}

comm::Outcome StateGatherer::masters_and_moments(uint64_t step) {
  std::vector<at::Tensor> flat{state_.first_moments, state_.second_moments};
  if (state_.rounded_weights()) flat.push_back(state_.masters); // otherwise they are the weights
  return gather(flat, step, comm::Kind::kParameters);
}

} // namespace nsa::train
