// Copies rows of packed tensors into those of a batch of documents, and back (document_copy.h):
//   to_filled  filled[document, i] = packed[begin + i], or the filling after the document's end
//   else       packed[begin + i] = filled[document, i]
//
// Memory-bound, no barrier. A CTA copies some rows of one tensor. A thread moves 16 bytes at a time
// if the tensor's alignment allows it, otherwise 4.
#include "nsa_model/kernels/document_copy/document_copy.h"

#include <algorithm>

#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/document_copy/config.h"
#include "nsa_model/kernels/document_copy/document_place.cuh"

namespace nsa::kernels {
namespace {

using document_copy::Tile;

template <typename Word> __device__ Word filling_of(int32_t word);
template <> __device__ int32_t filling_of<int32_t>(int32_t word) {
  return word;
}
template <> __device__ int4 filling_of<int4>(int32_t word) {
  return {word, word, word, word};
}

template <typename Word>
__device__ __forceinline__ void copy_rows(const DocumentCopyLaunch& launch,
                                          const DocumentTensor& tensor, int first_row, int rows) {
  const int words = tensor.row_bytes / static_cast<int>(sizeof(Word)); // words of a row
  const int total = rows * words;
  const auto* from = static_cast<const Word*>(launch.to_filled ? tensor.packed : tensor.filled);
  auto* to = static_cast<Word*>(launch.to_filled ? tensor.filled : tensor.packed);
  for (int begin = threadIdx.x; begin < total; begin += Tile::kThreads * Tile::kLoads) {
    Word value[Tile::kLoads];
    int64_t target[Tile::kLoads];
#pragma unroll
    for (int i = 0; i < Tile::kLoads; ++i) {
      const int index = begin + i * Tile::kThreads;
      target[i] = -1;
      if (index >= total) continue;
      const int row = index / words;
      const int word = index - row * words;
      const DocumentPlace place(launch, tensor.compressed, first_row + row);
      if (launch.to_filled) {
        target[i] = place.filled * words + word;
        value[i] =
            place.packed < 0 ? filling_of<Word>(tensor.filling) : from[place.packed * words + word];
      } else if (place.packed >= 0) {
        target[i] = place.packed * words + word;
        value[i] = from[place.filled * words + word];
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::kLoads; ++i)
      if (target[i] >= 0) to[target[i]] = value[i];
  }
}

__global__ void __launch_bounds__(Tile::kThreads)
    document_copy_kernel(const __grid_constant__ DocumentCopyLaunch launch) {
  wait_for_earlier_kernels();
  int index = 0;
  while (blockIdx.x >= launch.first_block[index + 1])
    ++index;
  const DocumentTensor& tensor = launch.tensors[index];
  const int block_rows = rows_a_block(tensor);
  const int first_row = static_cast<int>(blockIdx.x - launch.first_block[index]) * block_rows;
  const int all_rows = launch.document_count * rows_of(launch.length, tensor.compressed);
  const int rows = min(block_rows, all_rows - first_row);
  const auto bits = reinterpret_cast<uintptr_t>(tensor.packed) |
                    reinterpret_cast<uintptr_t>(tensor.filled) |
                    static_cast<uintptr_t>(tensor.row_bytes);
  if (bits % sizeof(int4) == 0) {
    copy_rows<int4>(launch, tensor, first_row, rows);
  } else {
    copy_rows<int32_t>(launch, tensor, first_row, rows);
  }
}

} // namespace

DocumentCopyLaunch document_copy_launch(const DocumentCopyParams& params, std::size_t first) {
  const DocumentBatch& batch = *params.batch;
  const int compressed_rows = compressed_count(params.shape.sequence);
  DocumentCopyLaunch launch = {};
  launch.document_count =
      static_cast<int>(std::min<std::size_t>(kDocumentsALaunch, batch.documents.size() - first));
  launch.length = batch.length;
  launch.to_filled = params.direction == CopyDirection::kToFilled;
  for (int i = 0; i < launch.document_count; ++i) {
    const Document& document = batch.documents[first + static_cast<std::size_t>(i)];
    launch.documents[i] = {document.row * params.shape.sequence + document.begin,
                           document.row * compressed_rows + document.compressed_begin,
                           document.length};
  }
  for (DocumentTensor tensor : params.tensors) {
    const int rows = rows_of(batch.length, tensor.compressed);
    if (rows == 0) continue; // no document has a compressed token
    tensor.filled = static_cast<char*>(tensor.filled) +
                    static_cast<std::ptrdiff_t>(first) * rows * tensor.row_bytes;
    const int block_rows = rows_a_block(tensor);
    const int blocks = (rows * launch.document_count + block_rows - 1) / block_rows;
    const int index = launch.tensor_count++;
    launch.tensors[index] = tensor;
    launch.first_block[index + 1] = launch.first_block[index] + static_cast<unsigned>(blocks);
  }
  return launch;
}

cudaError_t launch_document_copy(const DocumentCopyParams& params, cudaStream_t stream) {
  if (params.tensors.size() > kDocumentTensors) return cudaErrorInvalidValue;
  for (std::size_t first = 0; first < params.batch->documents.size(); first += kDocumentsALaunch) {
    const DocumentCopyLaunch launch = document_copy_launch(params, first);
    if (launch.blocks() == 0) continue;
    const cudaError_t error = launch_kernel(document_copy_kernel, dim3(launch.blocks()),
                                            Tile::kThreads, 0, stream, launch);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

} // namespace nsa::kernels
