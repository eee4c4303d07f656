// Options that the benchmarks of one layer's attention share. Pure; any thread.
#pragma once

#include "bench/arguments/arguments.h"

#include <cstdint>
#include <string>
#include <vector>

namespace nsa::bench {

struct AttentionOptions {
  int64_t groups = 2, heads = 6; // KV groups; query heads of a group
  bool dense = true;             // beside NSA
  int64_t repeats = 20;          // of a row
  double row_seconds = 1, seconds = 120;
  bool json = false;
  std::string library; // libnsa_ops_cuda.so; empty: where the programs look for it
};

// `own`, and behind them the options that set `shared`, which outlives them.
std::vector<Option> with_attention_options(std::vector<Option> own, AttentionOptions& shared);

} // namespace nsa::bench
