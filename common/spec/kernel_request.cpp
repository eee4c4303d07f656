#include "common/spec/kernel_request.h"

#include <algorithm>

namespace nsa::spec {

namespace {

bool has(const RunSpec& spec, std::string_view branch) {
  const auto& branches = spec.nsa.branches;
  return std::find(branches.begin(), branches.end(), branch) != branches.end();
}

template <class E, size_t N>
E value_of(const std::map<std::string, std::string>& toggles, const char* toggle,
           const std::array<std::string_view, N>& names) {
  const auto found = toggles.find(toggle);
  const auto at =
      found == toggles.end() ? names.end() : std::find(names.begin(), names.end(), found->second);
  return at == names.end() ? E::kAuto : static_cast<E>(at - names.begin());
}

} // namespace

choice::ModelSizes model_sizes(const RunSpec& spec) {
  const ModelSection& m = spec.model;
  const NsaSection& n = spec.nsa;
  return {.dense = m.attention == Attention::kDense,
          .vocabulary = m.vocabulary,
          .dimension = m.dimension,
          .heads = m.heads,
          .kv_groups = m.kv_groups,
          .head_dimension = m.head_dimension,
          .mlp_ratio = m.mlp_ratio,
          .compressed = has(spec, "compressed"),
          .selected = has(spec, "selected"),
          .sliding = has(spec, "sliding"),
          .learned_compression = n.compression == Compression::kMlp,
          .group_gate = n.gate == Gate::kGroupSoftmax,
          .nsa = {.compression_block = n.compression_block,
                  .compression_stride = n.compression_stride,
                  .selection_block = n.selection_block,
                  .selected_blocks = n.selected_blocks,
                  .window = n.window}};
}

choice::KernelRequest kernel_request(const RunSpec& spec,
                                     const std::map<std::string, std::string>& toggles) {
  using namespace choice;
  return {.attention = value_of<AttentionKernels>(toggles, "attention.kernels", kAttentionKernels),
          .dense = value_of<DenseAttention>(toggles, "attention.dense", kDenseAttention),
          .layers = value_of<LayerKernels>(toggles, "layers.kernels", kLayerKernels),
          .embedding =
              value_of<EmbeddingGradient>(toggles, "layers.embedding_gradient", kEmbeddingGradient),
          .micro_batch = spec.train.micro_batch,
          .sequence = spec.train.sequence_length,
          .documents = spec.data.document_mask,
          .deterministic = spec.train.deterministic};
}

choice::KernelPlan plan_kernels(const RunSpec& spec, bool gpu, bool bf16) {
  constexpr int kEveryKernel = 90;
  return choice::plan_kernels(
      {.gpu = gpu, .bf16 = bf16, .compute_capability = gpu ? kEveryKernel : 0}, model_sizes(spec),
      kernel_request(spec, spec.toggles));
}

} // namespace nsa::spec
