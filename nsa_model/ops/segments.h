// Segments: the parts of a batch that attention computes separately. Without documents one segment
// is the whole batch. With documents there is one for each document of each row.
//
// Pure functions, any thread; documents are read on the CPU, so no device is synchronised.
#pragma once

#include "nsa_model/reference/grid.h"

#include <ATen/ATen.h>

#include <optional>
#include <vector>

namespace nsa::ops {

using reference::Sizes;

struct Segment {
  int64_t row = 0, rows = 0; // batch rows [row, row + rows)
  reference::Document document;

  // This segment's tokens in x [B, S, ...], and its compressed tokens in x [B, Nc, ...].
  at::Tensor tokens(const at::Tensor& x) const {
    return x.narrow(0, row, rows).narrow(1, document.begin, document.length());
  }
  at::Tensor compressed(const at::Tensor& x, const Sizes& sizes) const {
    return x.narrow(0, row, rows)
        .narrow(1, document.compressed_begin,
                reference::compressed_count(document.length(), sizes));
  }
};

inline void check_document_start(const at::Tensor& start, int64_t batch, int64_t sequence) {
  TORCH_CHECK(start.is_cpu() && start.scalar_type() == at::kLong && start.dim() == 2 &&
                  start.size(0) == batch && start.size(1) == sequence,
              "nsa: document_start must be int64 [", batch, ", ", sequence, "] on the CPU, got ",
              start.scalar_type(), " ", start.sizes(), " on ", start.device());
}

inline std::vector<Segment> segments(int64_t batch, int64_t sequence, const Sizes& sizes,
                                     const std::optional<at::Tensor>& document_start) {
  if (sequence == 0) return {};
  if (!document_start || !document_start->defined())
    return {Segment{0, batch, reference::documents_of_row({}, sequence, sizes).front()}};
  check_document_start(*document_start, batch, sequence);
  const at::Tensor starts = document_start->contiguous();
  std::vector<Segment> all;
  for (int64_t row = 0; row < batch; ++row) {
    const std::span<const int64_t> line(starts.const_data_ptr<int64_t>() + row * sequence,
                                        size_t(sequence));
    for (const auto& document : reference::documents_of_row(line, sequence, sizes))
      all.push_back({row, 1, document});
  }
  return all;
}

} // namespace nsa::ops
