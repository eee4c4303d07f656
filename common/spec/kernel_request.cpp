#include "common/spec/kernel_request.h"

#include "common/spec/branches.h"
#include "common/spec/worker_toggles.h"

#include <algorithm>

namespace nsa::spec {

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
          .compressed = has(n, Branch::kCompressed),
          .selected = has(n, Branch::kSelected),
          .sliding = has(n, Branch::kSliding),
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
  return {.attention = kAttentionKernels.of(toggles),
          .dense = kDenseAttention.of(toggles),
          .layers = kLayerKernels.of(toggles),
          .embedding = kEmbeddingGradient.of(toggles),
          .micro_batch = spec.train.micro_batch,
          .sequence = spec.train.sequence_length,
          .context_ranks = std::max<int64_t>(1, spec.parallel.context_ranks),
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
