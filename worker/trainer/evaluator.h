// Every rank computes the loss of its part of the held-out sequences, and an all-reduce adds the
// sums. Training thread only.
#pragma once

#include "worker/data/evaluation.h"
#include "worker/link/phase_clock.h"
#include "worker/runtime/runtime.h"
#include "worker/step/batch_loss.h"
#include "worker/trainer/failure.h"

#include <filesystem>

namespace nsa::train {

struct Evaluator {
  const data::EvaluationSet& set;
  const TokenLosses& losses;
  runtime::Runtime& runtime;
  comm::Collectives& collectives;
  PhaseClock& clock;
  // If set, each rank writes rank-<r>.safetensors there, atomically. Its rows are this rank's
  // sequences of the set:
  // - "loss" F32 [rows, S] (nats),
  // - "target" I64 [rows, S] (the tokens),
  // - "position" I64 [rows] (of its first token in the held-out split),
  // - "source" I64 [rows] (the data set's number in a mixture).
  // Files of ranks that no longer exist are removed. It takes 16 bytes of host memory a token, and
  // the write adds to the evaluation's time. If the write fails, the rank logs the reason and
  // trains on.
  std::filesystem::path keep_in;
  // In a context group: the number of parts of each sequence, and the part that `losses` computes.
  // A file's rows are then parts of sequences, and S is the length of a part.
  int64_t parts = 1, part = 0;
};

// Every rank gets the same values.
struct HeldOutLoss {
  double loss = 0;               // mean over all tokens of the set; weighted by source in a mixture
  std::vector<double> of_source; // mean of each data set
};
RankResult<HeldOutLoss> evaluate(const Evaluator& evaluator, uint64_t step);

} // namespace nsa::train
