#pragma once
// Packed documents run in batches, against each document alone, and timed. One thread.

#include <string>
#include <vector>

#include "nsa_model/kernels/check/attention_case.h"
#include "nsa_model/kernels/fused/documents.h"

namespace nsa::kernels::check {

// Documents of these lengths in every row, again and again; the last is cut at the row's end.
std::vector<Document> documents_of(const AttentionShape& shape, const std::vector<int>& lengths);

struct DocumentsOptions {
  CaseOptions attention; // its shape is the packed batch's
  std::vector<Document> documents;
  bool compressed_given = false; // as by a learned phi: nothing is pooled
};
// What differs from each document alone, batched and one by one; empty when all is well. One by one
// every result has the same bits; batched out, dQ, dgates and the window's dK and dV. Other keys'
// gradients are sums that a batch may cut elsewhere: they are near, and how many documents differ
// is printed.
std::vector<std::string> compare_with_alone(const DocumentsOptions& options);

// Times of a layer's attention over `tokens` tokens of packed documents of several mixes of
// lengths: one by one, batched at several prices of launches, and each batch by itself.
int time_documents(int tokens, const CaseOptions& options);

} // namespace nsa::kernels::check
