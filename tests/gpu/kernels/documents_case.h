#pragma once
// Compares packed documents that run in batches with each document alone. One thread.

#include <string>
#include <vector>

#include "bench/kernel_cases/packed_case.h"

namespace nsa::kernels::check {

// Returns documents with these lengths, repeated in every row. The last one is cut at the end of
// the row.
std::vector<Document> documents_of(const AttentionShape& shape, const std::vector<int>& lengths);

// Returns the differences from each document alone, in batches and one by one; empty if there are
// none. One by one, every result must have the same bits. In batches, out, dQ, dgates and the
// window's dK and dV must have them. A batch may divide the sums of the other keys' gradients
// differently. They must be close, and the number of documents that differ is printed.
std::vector<std::string> compare_with_alone(const DocumentsOptions& options);

} // namespace nsa::kernels::check
