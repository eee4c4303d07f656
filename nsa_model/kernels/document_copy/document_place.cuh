#pragma once
// Maps a block's rows to both layouts. The kernel and the test share it.

#include "nsa_model/kernels/document_copy/document_copy.h"

namespace nsa::kernels {

inline constexpr int kCopyBytes = 16384; // approximate bytes that a block copies

__host__ __device__ inline int rows_of(int length, bool compressed) {
  return compressed ? compressed_count(length) : length;
}
__host__ __device__ inline int rows_a_block(const DocumentTensor& tensor) {
  const int rows = kCopyBytes / tensor.row_bytes;
  return rows < 1 ? 1 : rows;
}

// One filled row of a tensor and the corresponding packed row; -1 after the document's end.
struct DocumentPlace {
  int64_t filled;
  int64_t packed;

  __host__ __device__ DocumentPlace(const DocumentCopyLaunch& launch, bool compressed, int row) {
    const int rows = rows_of(launch.length, compressed);
    const int index = row / rows;
    const int at = row - index * rows;
    const DocumentRows& document = launch.documents[index];
    const int first = compressed ? document.compressed : document.token;
    filled = row;
    packed = at < rows_of(document.length, compressed) ? int64_t{first} + at : -1;
  }
};

} // namespace nsa::kernels
