// The grids of Native Sparse Attention: which tokens a compressed token covers, which tokens a
// selection block covers, and where documents begin. Indices start at 0 (the paper's start at 1).
//
// Pure functions, any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace nsa::reference {

// Sizes in tokens. The comments give the names of arXiv 2502.11089: l, d, l', n, w.
struct Sizes {
  int64_t compression_block = 32;  // l, a multiple of d
  int64_t compression_stride = 16; // d
  int64_t selection_block = 64;    // l', a multiple of d
  int64_t selected_blocks = 16;    // n, including the forced ones
  int64_t window = 512;            // w keys, including the token itself
};

// Number of compressed tokens in a document of `length` tokens. Trailing tokens that do not fill a
// block belong to none. With length = t + 1 it is also the number that token t sees.
inline int64_t compressed_count(int64_t length, const Sizes& sizes) {
  if (length < sizes.compression_block) return 0;
  return (length - sizes.compression_block) / sizes.compression_stride + 1;
}

// Number of selection blocks in a document of `length` tokens. The last one may be partial.
inline int64_t block_count(int64_t length, const Sizes& sizes) {
  return (length + sizes.selection_block - 1) / sizes.selection_block;
}

// Eq. 9 by shared strides: the number of strides that compressed token i and selection block b have
// in common. It is 1, 2, 2, 2, 1 for i = 4b - 1 .. 4b + 3 if l = 32, d = 16, l' = 64.
inline int64_t shared_strides(int64_t i, int64_t b, const Sizes& sizes) {
  const int64_t per_token = sizes.compression_block / sizes.compression_stride;
  const int64_t per_block = sizes.selection_block / sizes.compression_stride;
  const int64_t begin = std::max(i, b * per_block);
  const int64_t end = std::min(i + per_token, (b + 1) * per_block);
  return std::max<int64_t>(0, end - begin);
}

// A document within a row: tokens [begin, end) and its compressed tokens. The compressed tokens of
// all documents are concatenated in the row's [0, compressed_count(sequence)), and zero padding
// follows. They always fit, because l >= d.
struct Document {
  int64_t begin = 0, end = 0;
  int64_t compressed_begin = 0;
  int64_t length() const { return end - begin; }
  bool operator==(const Document&) const = default;
};

// Documents of one row of `sequence` tokens. `start[t]` is the index of the first token of t's
// document. An empty span means one document.
inline std::vector<Document> documents_of_row(std::span<const int64_t> start, int64_t sequence,
                                              const Sizes& sizes) {
  std::vector<Document> documents;
  int64_t compressed = 0;
  for (int64_t t = 0; t < sequence;) {
    int64_t end = start.empty() ? sequence : t + 1;
    while (end < sequence && start[end] == start[t])
      ++end;
    documents.push_back({t, end, compressed});
    compressed += compressed_count(end - t, sizes);
    t = end;
  }
  return documents;
}

} // namespace nsa::reference
