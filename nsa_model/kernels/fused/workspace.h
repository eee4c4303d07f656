#pragma once
// Sizes of buffers that several schedules use, and how one buffer is cut into pieces. Host code,
// any thread.

#include <cstddef>

#include "nsa_model/kernels/block_lists/block_lists.h"
#include "nsa_model/kernels/block_lists/rounds.h"
#include "nsa_model/kernels/common/shape.h"
#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels {

// Every buffer is aligned to 256 bytes.
constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// Allocates pieces of one buffer. With a null base it only counts.
class Carver {
public:
  explicit Carver(void* base) : base_(static_cast<char*>(base)) {}
  template <typename T> T* take(std::size_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += aligned(count * sizeof(T));
    return piece;
  }
  std::size_t used() const { return used_; }

private:
  char* base_;
  std::size_t used_ = 0;
};

inline std::size_t group_rows(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.batch) * shape.sequence * shape.groups;
}
inline std::size_t query_elements(const AttentionShape& shape) {
  return group_rows(shape) * static_cast<std::size_t>(shape.heads * shape.head_dim);
}
inline std::size_t head_count_floats(const AttentionShape& shape) {
  return static_cast<std::size_t>(head_floats(shape.heads));
}
inline std::size_t compressed_elements(const AttentionShape& shape) {
  return static_cast<std::size_t>(shape.batch) * compressed_count(shape.sequence) * shape.groups *
         shape.head_dim;
}

// Floats for the rows of one branch (BackwardPrepareParams) and for one more row.
inline std::size_t statistics_floats(const AttentionShape& shape) {
  return (group_rows(shape) + 1) * 2 * head_count_floats(shape);
}

struct Lists {
  int32_t* entries;
  int32_t* segment_start;
  int32_t* segment_item_start;
  WorkItem* items;
  uint32_t* claims;
  int32_t* chunk_counts;

  // Has room for lists of every token, which have the most sections.
  Lists(const AttentionShape& shape, Carver& carver) {
    const ListCut cut = list_cut(shape, 0);
    const auto segments = static_cast<std::size_t>(block_lists_segments(shape, cut));
    entries = carver.take<int32_t>(group_rows(shape) * kSlots);
    segment_start = carver.take<int32_t>(segments + 1);
    segment_item_start = carver.take<int32_t>(segments + 1);
    items = carver.take<WorkItem>(static_cast<std::size_t>(
        block_lists_item_capacity(shape, cut, shape.batch * shape.groups)));
    claims = carver.take<uint32_t>(1);
    chunk_counts = carver.take<int32_t>(block_lists_chunk_count_size(shape));
  }
};

inline bool is_on(const FusedInputs& inputs, int branch) {
  return inputs.k[branch] != nullptr;
}

// Runs launches one after another until one fails.
class Sequence {
public:
  template <typename Launch> Sequence& then(Launch launch) {
    if (error_ == cudaSuccess) error_ = launch();
    return *this;
  }
  cudaError_t error() const { return error_; }

private:
  cudaError_t error_ = cudaSuccess;
};

} // namespace nsa::kernels
