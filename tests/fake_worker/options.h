// Command line of nsa-fake-worker: that of nsa-worker, and what it is to fake.
//
//   --fake steps=20 step_ms=10 checkpoint_every=5 ...       any number of name=value, also repeated
//   --fake fault=mutex_deadlock@7 rank=1 attempt=1           what goes wrong, when, on which rank
//   --fake fault=graphs@3         a step cannot be recorded; nothing goes wrong --without-graphs
#pragma once

#include "common/base/ids.h"
#include "common/base/result.h"

#include <cstdint>
#include <string>

namespace nsa::fake {

struct Options {
  // As nsa-worker takes them.
  std::string spec, run_folder, attempt_folder, rendezvous, resume, without_graphs;
  RunId run_id;
  AttemptNumber attempt = 1;
  Rank rank = 0;
  int world_size = 1;

  uint64_t steps = 0;            // 0: train.steps of the spec, or 20 without one
  int64_t step_ms = 10;          // of a step, shared out over its phases
  int64_t start_ms = 0;          // in the start-up phase
  uint64_t checkpoint_every = 0; // steps; 0: none but at a stop
  int64_t log_lines = 1;         // a step, on standard output
  int64_t log_bytes = 0;         // a line is padded to this
  int64_t flood_mb = 0;          // on standard output in step 1
  bool peers = true;             // false: no collectives, ranks run free of each other
  bool async = false;            // a device of its own: the host runs up to two steps ahead of it
  bool deaf = false;             // never reads its link: no stop request is heard
  uint64_t diverge_at = 0;       // step from which the loss is 158; 0: none
  int64_t evaluations = 0;       // that rank 0 reports a step
  int64_t other_ranks = 0;       // in whose names rank 0 reports a step: 1000 and so on
  int orphans = 0;               // processes in sessions of their own that outlive it
  std::string fault = "none";    // one of fault_kinds() in faults.h
  uint64_t fault_step = 0;
  Rank fault_rank = -1;             // -1: every rank
  AttemptNumber fault_attempt = -1; // -1: every attempt
  int exit_code = 1;                // of fault=exit
};

// kInvalidArgument names the option that is wrong. Reads the spec (JSON), if one is given, for
// train.steps and [inject].
Result<Options> parse_options(int argc, char** argv);

} // namespace nsa::fake
