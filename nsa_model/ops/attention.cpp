#include "nsa_model/ops/attention.h"

#include "nsa_model/ops/fused.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/reference_attention.h"
#include "nsa_model/ops/segments.h"
#include "nsa_model/ops/selection_probe.h"
#include "nsa_model/ops/step_part.h"

#include <algorithm>
#include <string>

namespace nsa::ops {

namespace {

// Whether the compressed keys arrive un-pooled. A sequence has fewer compressed tokens than tokens.
bool comes_unpooled(const AttentionInputs& in, const Settings& settings) {
  const OptionalTensor& k = in.k[int(Branch::kCompressed)];
  return k && k->defined() && k->dim() == 4 && k->size(1) == in.q.size(1) &&
         k->size(1) != reference::compressed_count(in.q.size(1), settings.sizes);
}

// Checks what every implementation relies on, so that all of them report the same error.
void check(const AttentionInputs& in, const Settings& settings) {
  for (const Branch branch : {Branch::kCompressed, Branch::kSelected, Branch::kSliding}) {
    const auto &k = in.k[int(branch)], &v = in.v[int(branch)];
    const bool on = k && k->defined();
    TORCH_CHECK(on == (v && v->defined()),
                "nsa: k and v of a branch are given together or left out together");
    if (!on) continue;
    const bool given = branch == Branch::kSelected && in.indices && in.indices->defined();
    // Un-pooled keys have the shape of the sliding keys: one for each token.
    const bool unpooled = branch == Branch::kCompressed && comes_unpooled(in, settings);
    check_branch(unpooled ? Branch::kSliding : branch, in.q, *k, *v,
                 given ? in.indices : std::nullopt, settings);
    if (given)
      TORCH_CHECK(in.indices->size(3) == settings.sizes.selected_blocks, "nsa: selected_blocks is ",
                  settings.sizes.selected_blocks, ", but indices hold ", in.indices->size(3),
                  " a token");
  }
  check_gates(in.gates, in.q);
  if (in.document_start && in.document_start->defined())
    check_document_start(*in.document_start, in.q.size(0), in.q.size(1));
}

// Up to n * l' tokens every causal block is selected, so there is nothing to score.
bool selects(const AttentionInputs& in, const Settings& settings) {
  const OptionalTensor& k = in.k[int(Branch::kSelected)];
  return k && k->defined() && !in.indices &&
         in.q.size(1) > settings.sizes.selected_blocks * settings.sizes.selection_block;
}

// Reports the selection to the probe. Blocks are [B, S, G, n]; the rows of a document are those of
// its tokens.
void tell_selection(const at::Tensor& blocks, const AttentionInputs& in, const Sizes& sizes) {
  if (!selection_is_probed()) return;
  const int64_t length = in.q.size(1);
  std::vector<SelectedRows> documents;
  for (const Segment& s : segments(in.q.size(0), length, sizes, in.document_start))
    for (int64_t row = s.row; row < s.row + s.rows; ++row)
      documents.push_back({row * length + s.document.begin, s.document.length()});
  note_selection(blocks, documents, sizes);
}

void count_reference(const AttentionInputs& in, const Settings& settings) {
  for (size_t branch = 0; branch < in.k.size(); ++branch)
    if (in.k[branch] && in.k[branch]->defined())
      count_kernel(choice::Part(branch), choice::Backend::kReference);
  if (selects(in, settings)) count_kernel(choice::Part::kSelection, choice::Backend::kReference);
}

StepPart step_part_of(Branch branch) {
  return branch == Branch::kCompressed ? StepPart::kCompressed
         : branch == Branch::kSelected ? StepPart::kSelected
                                       : StepPart::kSliding;
}

at::Tensor aten_attention(const AttentionInputs& in, const Settings& settings) {
  const auto on = [&](Branch branch) { return in.k[int(branch)] && in.k[int(branch)]->defined(); };
  const auto run = [&](Branch branch, const OptionalTensor& indices, const BranchOptions& options) {
    const PartScope part(step_part_of(branch));
    return branch_attention(branch, in.q, *in.k[int(branch)], *in.v[int(branch)], indices, settings,
                            in.document_start, options);
  };
  const bool choose = selects(in, settings);
  std::array<OptionalTensor, 3> branch_o;
  OptionalTensor indices = in.indices;
  if (choose) count_kernel(choice::Part::kSelection, choice::Backend::kAten);
  if (on(Branch::kCompressed)) {
    const BranchResult result = run(Branch::kCompressed, std::nullopt, {false, choose, false});
    branch_o[0] = result.o;
    if (choose) {
      indices = result.indices;
      tell_selection(result.indices, in, settings.sizes);
    }
  }
  TORCH_CHECK(!choose || indices, "nsa: the selected branch needs compressed keys or indices");
  if (on(Branch::kSelected))
    branch_o[1] = run(Branch::kSelected, indices, {false, false, choose}).o;
  if (on(Branch::kSliding)) branch_o[2] = run(Branch::kSliding, std::nullopt, {}).o;
  return combine(in.gates, branch_o);
}

} // namespace

at::Tensor attention(const AttentionInputs& inputs, const Settings& settings, Kernels kernels) {
  require_kernels(kernels, inputs.q.device());
  check(inputs, settings);
  const PartScope part(StepPart::kAttention);
  if (kernels == Kernels::kFused) return fused_attention(inputs, settings);
  AttentionInputs in = inputs;
  if (comes_unpooled(inputs, settings)) {
    const PartScope pooling(StepPart::kCompression);
    for (auto* side : {&in.k, &in.v}) {
      OptionalTensor& x = (*side)[int(Branch::kCompressed)];
      x = pool(*x, settings.sizes, inputs.document_start);
    }
  }
  if (kernels == Kernels::kReference) {
    count_reference(in, settings);
    return reference_attention(in, settings);
  }
  return aten_attention(in, settings);
}

at::Tensor attention(const AttentionInputs& inputs, const Settings& settings, Kernels kernels,
                     KeptAttention& kept) {
  if (kernels != Kernels::kFused) return attention(inputs, settings, kernels);
  require_kernels(kernels, inputs.q.device());
  check(inputs, settings);
  if (!kept.tensors.empty()) return fused_attention_second(inputs, settings, kept.tensors);
  kept.tensors = fused_attention_first(inputs, settings);
  return kept.tensors.front();
}

Kernels parse_kernels(std::string_view op, std::string_view name, std::vector<Kernels> known) {
  const std::optional<Kernels> kernels = choice::kernels_from(name);
  if (kernels && std::find(known.begin(), known.end(), *kernels) != known.end()) return *kernels;
  std::string names;
  for (size_t i = 0; i < known.size(); ++i)
    names += (i == 0                  ? ""
              : i + 1 == known.size() ? " or "
                                      : ", ") +
             std::string(choice::kernels_name(known[i]));
  TORCH_CHECK(false, op, ": kernels = \"", name, "\" is not known: write ", names);
}

void require_kernels(Kernels kernels, at::Device device) {
  if (kernels == Kernels::kAten) return;
  if (kernels == Kernels::kReference) {
    TORCH_CHECK(device.is_cpu(),
                "attention.kernels = \"reference\" is the float64 oracle and runs on "
                "the CPU only, not on ",
                device);
    return;
  }
  if (device.is_meta()) return; // meta tensors need only shapes
  TORCH_CHECK(device.is_cuda(),
              "attention.kernels = \"fused\" needs a CUDA GPU, and this model is on ", device,
              ": write \"aten\"");
  TORCH_CHECK(fused_is_loaded(),
              "attention.kernels = \"fused\" needs libnsa_ops_cuda.so, which is not "
              "loaded: build with nvcc and load it (from Python by torch.ops.load_library), or "
              "write \"aten\"");
}

} // namespace nsa::ops
