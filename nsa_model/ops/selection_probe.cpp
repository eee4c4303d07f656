#include "nsa_model/ops/selection_probe.h"

#include "nsa_model/ops/registered.h"
#include "nsa_model/ops/step_part.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace nsa::ops {

namespace {

using at::Tensor;

thread_local SelectionProbe* t_probe = nullptr;
thread_local int64_t t_layer = 0;

// Offset in its block of the first query of a pair: the pair is the two tokens in the middle.
int64_t first_of_pair(const Sizes& sizes) {
  return std::max<int64_t>(sizes.selection_block / 2, 1) - 1;
}

// Number of blocks, counted from the n-th, whose pair lies within the document.
int64_t probed_blocks(int64_t length, const Sizes& sizes) {
  const int64_t last = length - 2 - first_of_pair(sizes);
  return last < 0 ? 0
                  : std::max<int64_t>(0, last / sizes.selection_block + 1 - sizes.selected_blocks);
}

} // namespace

std::vector<int64_t> probed_rows(const std::vector<SelectedRows>& documents, const Sizes& sizes) {
  int64_t all = 0;
  for (const SelectedRows& document : documents)
    all += probed_blocks(document.length, sizes);
  const int64_t stride = (all + kProbedPairs - 1) / kProbedPairs;
  std::vector<int64_t> rows;
  int64_t next = stride / 2, passed = 0; // counted over the blocks of all documents
  for (const SelectedRows& document : documents) {
    const int64_t blocks = probed_blocks(document.length, sizes);
    for (; next < passed + blocks; next += stride)
      rows.push_back(document.first +
                     (sizes.selected_blocks + next - passed) * sizes.selection_block +
                     first_of_pair(sizes));
    passed += blocks;
  }
  return rows;
}

Tensor selection_figures(const Tensor& blocks, const Sizes& sizes) {
  const Tensor pairs = blocks.unflatten(1, {-1, 2});                    // [L, pairs, 2, G, n]
  const Tensor own = pairs.amax(at::IntArrayRef{-1}, /*keepdim=*/true); // [L, pairs, 2, G, 1]
  // Blocks that are neither empty nor forced, for queries that had a choice.
  const Tensor chosen =
      pairs.gt(0).logical_and_(pairs.lt(own - 1)).logical_and_(own.ge(sizes.selected_blocks));
  constexpr std::array<int64_t, 4> all_but_layers{1, 2, 3, 4};
  const Tensor distance = (own - pairs)
                              .mul_(chosen)
                              .sum(all_but_layers)
                              .to(at::kFloat)
                              .mul_(static_cast<double>(sizes.selection_block))
                              .div_(chosen.sum(all_but_layers));
  // Overlap counts only pairs whose two queries are in the same block. Others may choose among
  // different blocks.
  const Tensor first = chosen.select(2, 0).logical_and(own.select(2, 0).eq(own.select(2, 1)));
  const Tensor common = pairs.select(2, 0)
                            .unsqueeze(-1)
                            .eq(pairs.select(2, 1).unsqueeze(-2))
                            .logical_and_(first.unsqueeze(-1))
                            .logical_and_(chosen.select(2, 1).unsqueeze(-2));
  const Tensor overlap =
      common.sum(all_but_layers).to(at::kFloat).div_(first.sum(at::IntArrayRef{1, 2, 3}));
  return at::stack({distance, overlap}, 1);
}

SelectionProbe::Scope::Scope(SelectionProbe* probe, int64_t layer)
    : probe_before_(std::exchange(t_probe, probe)), layer_before_(std::exchange(t_layer, layer)) {}

SelectionProbe::Scope::~Scope() {
  t_probe = probe_before_;
  t_layer = layer_before_;
}

void SelectionProbe::note(int64_t layer, const Tensor& blocks,
                          const std::vector<SelectedRows>& documents, const Sizes& sizes) {
  const at::NoGradGuard no_grad;
  const PartScope part(StepPart::kSelection);
  std::vector<int64_t> queries;
  for (const int64_t row : probed_rows(documents, sizes)) {
    queries.push_back(row);
    queries.push_back(row + 1);
  }
  if (queries.empty()) return;
  if (queries != queries_) {
    gather();
    const Tensor rows = at::tensor(queries, at::kLong);
    // The copy is from pinned memory, so the host does not wait for work on the device.
    query_rows_ =
        device_.is_cpu() ? rows : rows.pin_memory().to(device_, at::kLong, /*non_blocking=*/true);
    queries_ = std::move(queries);
  }
  const Tensor rows = blocks.flatten(0, blocks.dim() - 3); // [tokens, G, n]
  const int64_t groups = rows.size(1), slots = rows.size(2);
  if (!sample_.defined() || sample_.size(2) != groups || sample_.size(3) != slots) {
    noted_.clear();
    sample_ = at::full({layers_, 2 * kProbedPairs, groups, slots}, -1, rows.options());
  }
  sizes_ = sizes;
  noted_.push_back({layer, rows});
}

void SelectionProbe::gather() {
  if (noted_.empty()) return;
  static const auto op =
      registered<void(at::TensorList, at::TensorList, const Tensor&)>("nsa::layer_sample_");
  const at::NoGradGuard no_grad;
  const PartScope part(StepPart::kSelection);
  std::vector<Tensor> samples, blocks;
  for (const Noted& noted : std::exchange(noted_, {})) {
    samples.push_back(sample_.select(0, noted.layer).narrow(0, 0, query_rows_.size(0)));
    blocks.push_back(noted.blocks);
  }
  op.call(samples, blocks, query_rows_);
}

Tensor SelectionProbe::take() {
  gather();
  if (!sample_.defined())
    return at::full({layers_, 2}, std::numeric_limits<float>::quiet_NaN(),
                    at::TensorOptions().dtype(at::kFloat).device(device_));
  const at::NoGradGuard no_grad;
  const Tensor figures = selection_figures(sample_, sizes_);
  sample_.fill_(-1);
  return figures;
}

namespace composed {

void layer_sample_(at::TensorList samples, at::TensorList blocks, const Tensor& rows) {
  for (size_t i = 0; i < samples.size(); ++i) {
    Tensor out = samples[i];
    at::index_select_out(out, blocks[i], 0, rows);
  }
}

} // namespace composed

TORCH_LIBRARY_FRAGMENT(nsa, library) {
  library.def(
      "layer_sample_(Tensor(a!)[] samples, Tensor[] blocks, Tensor rows) -> ()",
      torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &composed::layer_sample_));
}

bool selection_is_probed() {
  return t_probe != nullptr;
}

void note_selection(const Tensor& blocks, const std::vector<SelectedRows>& documents,
                    const Sizes& sizes) {
  if (t_probe != nullptr) t_probe->note(t_layer, blocks, documents, sizes);
}

} // namespace nsa::ops
