// What nsa-bench decode measures, and how much a step reads. Pure; any thread.
#pragma once

#include "bench/arguments/attention_options.h"

#include <cstdint>
#include <vector>

namespace nsa::bench {

struct DecodeOptions : AttentionOptions {
  std::vector<int64_t> contexts{4096, 8192, 16384, 32768, 65536, 131072}, batches{1, 64};
};

// The command whose options set `options`. `options` must outlive it.
CommandLine decode_command(DecodeOptions& options);

// Number of keys that one step reads of a sequence and KV group, by the paper's count: context / 16
// compressed ones, 16 blocks of 64 and a window of 512. It reads as many values.
int64_t keys_read(int64_t context);
// Bytes of these keys and values in BF16.
double bytes_read(int64_t context, int64_t batch, int64_t groups, int64_t head_dimension);

} // namespace nsa::bench
