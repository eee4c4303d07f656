// Fills batches from the token sequences of a split. Loader and evaluation use it, on the caller's
// thread.
#pragma once

#include "worker/data/batch.h"
#include "worker/data/source.h"

#include <span>

namespace nsa::data {

// Returns a batch with room for `rows` rows.
Batch make_batch(int64_t rows, int64_t sequence_length, const AllocateBuffer& allocate);

// Reads the sequences at `addresses` into `batch`: at most as many as it has room for.
void fill_batch(const std::vector<Source>& sources, dataset::Split split,
                std::span<const SequenceAddress> addresses, Batch& batch);

} // namespace nsa::data
