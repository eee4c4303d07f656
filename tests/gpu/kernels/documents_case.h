#pragma once
// Packed documents run in batches, against each document alone. One thread.

#include <string>
#include <vector>

#include "bench/kernel_cases/packed_case.h"

namespace nsa::kernels::check {

// Documents of these lengths in every row, again and again; the last is cut at the row's end.
std::vector<Document> documents_of(const AttentionShape& shape, const std::vector<int>& lengths);

// What differs from each document alone, batched and one by one; empty when all is well. One by one
// every result has the same bits; batched out, dQ, dgates and the window's dK and dV. Other keys'
// gradients are sums that a batch may cut elsewhere: they are near, and how many documents differ
// is printed.
std::vector<std::string> compare_with_alone(const DocumentsOptions& options);

} // namespace nsa::kernels::check
