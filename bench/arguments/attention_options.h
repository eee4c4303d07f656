// Options that the benchmarks of one layer's attention share. Pure; any thread.
#pragma once

#include "bench/arguments/arguments.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nsa::bench {

struct AttentionOptions {
  int64_t groups = 2, heads = 6; // KV groups; query heads per group
  bool dense = true;             // measure dense attention beside NSA
  int64_t repeats = 20;          // repeats of a row
  double row_seconds = 1, seconds = 120;
  bool json = false;
  std::string library; // libnsa_ops_cuda.so; empty: the programs' default places
};

// Returns `own` followed by the options that set `shared`. `shared` must outlive them.
std::vector<Option> with_attention_options(std::vector<Option> own, AttentionOptions& shared);

} // namespace nsa::bench
