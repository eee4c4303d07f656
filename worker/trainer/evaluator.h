// Held-out loss: every rank computes its share of the held-out sequences, the sums are reduced.
// Training thread only.
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
  // Not empty: each rank writes rank-<r>.safetensors there, whole or not at all. Its rows are this
  // rank's sequences of the set: "loss" F32 [rows, S] (nats), "target" I64 [rows, S] (the tokens),
  // "position" I64 [rows] (of its first token in the held-out split), "source" I64 [rows] (of a
  // mixture: the data set's number). Files of ranks that there are no more go. It takes 16 bytes a
  // token of host memory, and the disk's time within the evaluation. That it cannot be written is
  // logged, and no failure.
  std::filesystem::path keep_in;
  // Where ranks share sequences: into how many parts each is cut, and which one `losses` are of. A
  // file's rows are then parts of sequences, and S is their length.
  int64_t parts = 1, part = 0;
};

// The same on every rank.
struct HeldOutLoss {
  double loss = 0;               // mean over all tokens of the set; of a mixture by its weights
  std::vector<double> of_source; // mean of each data set
};
RankResult<HeldOutLoss> evaluate(const Evaluator& evaluator, uint64_t step);

} // namespace nsa::train
