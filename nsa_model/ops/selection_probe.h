// SelectionProbe: which blocks the layers of a model select, seen on a sample of their queries. The
// operators of attention tell it the blocks that they have chosen by scores (Eq. 9 to 11). So the
// figures are those of the kernels that train.
//
// A layer's pass costs one small kernel, which copies the sample. All else is done in take(), for
// all layers together. Nothing waits for the device. The sample stays in place, so that a replayed
// graph fills it, too: the first pass of a shape makes it, and has to come before the recording.
//
// One thread at a time.
#pragma once

#include "nsa_model/reference/grid.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace nsa::ops {

using reference::Sizes;

// A document's tokens among the rows of the blocks of a batch, [rows, G, n].
struct SelectedRows {
  int64_t first = 0, length = 0;
};

// Queries that are looked at in each layer and pass: so many pairs of neighbours.
inline constexpr int64_t kProbedPairs = 64;

// The rows of the first query of each pair, which share a selection block with the second. Only of
// queries that have more than n causal blocks: all others select every block. Spread evenly; pure.
std::vector<int64_t> probed_rows(const std::vector<SelectedRows>& documents, const Sizes& sizes);

// Of blocks int32 [layers, 2 * pairs, G, n], ascending, with the query's own one last; -1 where
// there was no query. FP32 [layers, 2]: distance and overlap, as SelectionProbe::take() tells them.
at::Tensor selection_figures(const at::Tensor& blocks, const Sizes& sizes);

class SelectionProbe {
public:
  SelectionProbe(int64_t layers, at::Device device) : layers_(layers), device_(device) {}

  // What attention chooses within it, on this thread, is of that layer. nullptr: nobody asks.
  class Scope {
  public:
    Scope(SelectionProbe* probe, int64_t layer);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

  private:
    SelectionProbe* const probe_before_;
    const int64_t layer_before_;
  };

  // Of each layer, since the last call, FP32 [layers, 2]; NaN where no block was chosen:
  // - the mean distance in tokens from a query's own block to the blocks that its scores chose.
  //   Blocks that every query takes (the first, its own and the one before) do not count.
  // - of these blocks, the mean share that the next query has chosen as well.
  at::Tensor take();

  void note(int64_t layer, const at::Tensor& blocks, const std::vector<SelectedRows>& documents,
            const Sizes& sizes);

private:
  const int64_t layers_;
  const at::Device device_;
  Sizes sizes_;
  at::Tensor sample_; // int32 [layers, 2 * kProbedPairs, G, n]; -1: nothing
  std::vector<int64_t> queries_;
  at::Tensor query_rows_; // the same on the device
};

// For the operators. Where nobody asks, they need not say where documents lie.
bool selection_is_probed();
void note_selection(const at::Tensor& blocks, const std::vector<SelectedRows>& documents,
                    const Sizes& sizes);

} // namespace nsa::ops
