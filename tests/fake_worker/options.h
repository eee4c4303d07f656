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
  // The same options as those of nsa-worker.
  std::string spec, run_folder, attempt_folder, rendezvous, resume, without_graphs;
  RunId run_id;
  AttemptNumber attempt = 1;
  Rank rank = 0;
  int world_size = 1;

  uint64_t steps = 0;            // 0: train.steps of the spec, or 20 without one
  int64_t step_ms = 10;          // of a step, divided among its phases
  int64_t start_ms = 0;          // in the start-up phase
  uint64_t checkpoint_every = 0; // in steps; 0: only at a stop
  int64_t log_lines = 1;         // for each step, on standard output
  int64_t log_bytes = 0;         // each line is padded to this length
  int64_t flood_mb = 0;          // on standard output in step 1
  bool peers = true;             // false: no collectives, so ranks do not wait for each other
  bool async = false;      // true: with a device, and the host runs up to two steps ahead of it
  bool deaf = false;       // true: never reads its link, so no stop request arrives
  uint64_t diverge_at = 0; // the first step whose loss is 158; 0: none
  int64_t evaluations = 0; // number that rank 0 reports in each step
  int64_t other_ranks = 0; // number of ranks in whose names rank 0 reports a step: 1000 and so on
  int orphans = 0;         // processes in separate sessions that outlive the rank
  std::string fault = "none"; // one of fault_kinds() in faults.h
  uint64_t fault_step = 0;
  Rank fault_rank = -1;             // -1: every rank
  AttemptNumber fault_attempt = -1; // -1: every attempt
  int exit_code = 1;                // of `fault=exit`
};

// Reads train.steps and [inject] from the spec (JSON) if one is given. kInvalidArgument names the
// wrong option.
Result<Options> parse_options(int argc, char** argv);

} // namespace nsa::fake
