// Held-out loss: every rank computes its share of the held-out sequences, the sums are reduced.
// Training thread only.
#pragma once

#include "worker/data/evaluation.h"
#include "worker/runtime/runtime.h"
#include "worker/train/batch_loss.h"
#include "worker/train/failure.h"
#include "worker/train/phase_clock.h"

namespace nsa::train {

// Mean loss over all sequences of the set, the same on every rank.
Attempt<double> evaluate(const data::EvaluationSet& set, const BatchLoss& loss, uint64_t step,
                         runtime::Runtime& runtime, comm::Collectives& collectives,
                         PhaseClock& clock);

} // namespace nsa::train
