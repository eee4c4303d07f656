// Fills batches from the token sequences of a split. Shared by loader and evaluation; the caller's
// thread.
#pragma once

#include "worker/data/batch.h"
#include "worker/data/source.h"

#include <span>

namespace nsa::data {

// A batch with room for `rows` rows.
Batch make_batch(int64_t rows, int64_t sequence_length, const AllocateBuffer& allocate);

// Reads the rows named by addresses (as many as the batch was made for, or fewer) into `batch`.
void fill_batch(const std::vector<Source>& sources, dataset::Split split,
                std::span<const SequenceAddress> addresses, Batch& batch);

} // namespace nsa::data
