// A micro-batch of one rank: the tokens and their origin.
#pragma once

#include "worker/data/sample_order.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace nsa::data {

// Allocates memory for token buffers: `bytes` bytes, aligned to 64, freed by the pointer's deleter.
// The default is ordinary memory; a GPU run passes pinned memory, so that copies are asynchronous.
using AllocateBuffer = std::function<std::shared_ptr<std::byte>(size_t bytes)>;

struct Batch {
  int64_t step = 0;       // counted from the step at which the loader was opened
  int64_t micro_step = 0; // in [0, accumulate)
  int64_t rows = 0;       // micro_batch; fewer only in the last batch of an evaluation
  int64_t sequence_length = 0;

  // [rows, sequence_length], row-major, int64 as LibTorch's losses need it. targets[r, t] is the
  // token after inputs[r, t].
  std::span<const int64_t> inputs;
  std::span<const int64_t> targets;

  // One for each row. Evidence of hangs and non-finite steps records it.
  std::vector<SequenceAddress> rows_from;

  std::shared_ptr<std::byte> memory; // owns inputs and targets
};

// Returns the offsets in a row at which documents begin, for attention that must not cross them: 0
// and every later separator. A separator begins a document. Ascending.
std::vector<int32_t> document_starts(std::span<const int64_t> row, int64_t separator);

} // namespace nsa::data
