// Distance and overlap of selected blocks, computed in plain loops over the queries. Tests compare
// the figures of ops::SelectionProbe with them.
#pragma once

#include "nsa_model/ops/selection_probe.h"

#include <ATen/ATen.h>

#include <set>

namespace nsa::test {

struct SelectionLoops {
  // Number of blocks chosen by their scores, and the sum of their distances.
  int64_t chosen = 0, tokens = 0;
  int64_t compared = 0, common = 0;
  double distance() const { return double(tokens) / double(chosen); }
  double overlap() const { return double(common) / double(compared); }

  // `blocks` is int32 [B, S, G, n], with the tokens of the documents.
  SelectionLoops(const at::Tensor& blocks, const std::vector<ops::SelectedRows>& documents,
                 const ops::Sizes& sizes) {
    const at::Tensor rows = blocks.to(at::kCPU, at::kLong).flatten(0, 1).contiguous();
    for (const int64_t row : ops::probed_rows(documents, sizes))
      for (int64_t group = 0; group < rows.size(1); ++group) {
        const auto first = chosen_by(rows[row][group], position_of(row, documents), sizes);
        const auto next = chosen_by(rows[row + 1][group], position_of(row + 1, documents), sizes);
        for (const int64_t block : first)
          common += int64_t(next.count(block));
        compared += int64_t(first.size());
      }
  }

private:
  static int64_t position_of(int64_t row, const std::vector<ops::SelectedRows>& documents) {
    for (const ops::SelectedRows& document : documents)
      if (row >= document.first && row < document.first + document.length)
        return row - document.first;
    TORCH_CHECK(false, "row ", row, " is of no document");
  }
  // Leaves out the blocks that every query takes.
  std::set<int64_t> chosen_by(const at::Tensor& slots, int64_t position, const ops::Sizes& sizes) {
    const int64_t own = position / sizes.selection_block;
    std::set<int64_t> found;
    for (int64_t i = 0; i < slots.numel(); ++i) {
      const int64_t block = slots[i].item<int64_t>();
      if (block <= 0 || block >= own - 1) continue;
      found.insert(block);
      ++chosen;
      tokens += (own - block) * sizes.selection_block;
    }
    return found;
  }
};

} // namespace nsa::test
