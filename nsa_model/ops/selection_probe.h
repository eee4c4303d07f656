// SelectionProbe: samples which blocks the layers of a model select. The attention operators report
// the blocks that they have chosen by scores (Eq. 9 to 11). So the figures describe the kernels
// that train.
//
// One small kernel copies the samples of all layers of a pass. take() computes everything else for
// all layers together. Nothing waits for the device. The sample keeps its address, so that a
// replayed graph fills it too. The first pass of a shape allocates it and must run before the
// recording.
//
// One thread at a time.
#pragma once

#include "nsa_model/reference/grid.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace nsa::ops {

using reference::Sizes;

// The tokens of a document among the rows of a batch's blocks, [rows, G, n].
struct SelectedRows {
  int64_t first = 0, length = 0;
};

// Pairs of neighbouring queries that are sampled in each layer and pass.
inline constexpr int64_t kProbedPairs = 64;

// The row of the first query of each sampled pair. The second query is the next row and is in the
// same selection block. Only queries with more than n causal blocks count, because all others
// select every block. Pairs are spread evenly. Pure.
std::vector<int64_t> probed_rows(const std::vector<SelectedRows>& documents, const Sizes& sizes);

// blocks: int32 [layers, 2 * pairs, G, n], ascending; the query's own block is last; -1 if there
// was no query. Returns distance and overlap as FP32 [layers, 2], as SelectionProbe::take() defines
// them.
at::Tensor selection_figures(const at::Tensor& blocks, const Sizes& sizes);

class SelectionProbe {
public:
  SelectionProbe(int64_t layers, at::Device device) : layers_(layers), device_(device) {}

  // While it exists, selections on this thread belong to that layer. With nullptr they are not
  // recorded.
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

  // Copies the samples of the layers that were noted since the last call. Call it after each pass,
  // and earlier where a layer's blocks would be freed before. A layer is noted once between calls.
  void gather();
  void forget() { noted_.clear(); } // what a pass that failed has noted

  // Figures of each layer since the last call, FP32 [layers, 2]; NaN if no block was chosen:
  // - the mean distance in tokens from a query's own block to the blocks that its scores chose.
  //   The blocks that every query selects (the first, its own, the one before) do not count.
  // - the mean fraction of these blocks that the next query has chosen too.
  at::Tensor take();

  void note(int64_t layer, const at::Tensor& blocks, const std::vector<SelectedRows>& documents,
            const Sizes& sizes);

private:
  const int64_t layers_;
  const at::Device device_;
  Sizes sizes_;
  at::Tensor sample_; // int32 [layers, 2 * kProbedPairs, G, n]; -1: empty
  std::vector<int64_t> queries_;
  at::Tensor query_rows_; // queries_ on the device
  struct Noted {
    int64_t layer;
    at::Tensor blocks; // [tokens, G, n]
  };
  std::vector<Noted> noted_; // since the last gather()
};

// The operation behind gather(). Each sample [rows, G, n] gets these rows of its layer's blocks. It
// has a CUDA implementation as nsa::layer_sample_.
namespace composed {
void layer_sample_(at::TensorList samples, at::TensorList blocks, const at::Tensor& rows);
} // namespace composed

// The operators call these. If nobody probes, they need not compute the documents' positions.
bool selection_is_probed();
void note_selection(const at::Tensor& blocks, const std::vector<SelectedRows>& documents,
                    const Sizes& sizes);

} // namespace nsa::ops
