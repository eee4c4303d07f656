#pragma once
// Packed documents that run in batches. Checks compare them with each document alone, and
// benchmarks time them. One thread.

#include <algorithm>
#include <utility>
#include <vector>

#include "bench/kernel_cases/attention_case.h"
#include "bench/kernel_cases/measure.h"
#include "nsa_model/kernels/fused/documents.h"

namespace nsa::kernels::check {

struct DocumentsOptions {
  CaseOptions attention; // its shape is the packed batch's
  std::vector<Document> documents;
  bool compressed_given = false; // as with a learned phi: nothing is pooled
};

// An attention problem with the saved tensors and the workspace of a plan.
struct PackedCase {
  PackedCase(const DocumentsOptions& wanted, DocumentPlan its_plan)
      : options(wanted), plan(std::move(its_plan)), attention(wanted.attention) {
    const AttentionShape& shape = options.attention.shape;
    const auto tokens = static_cast<std::size_t>(plan.tokens);
    const auto heads =
        static_cast<std::size_t>(shape.groups) * static_cast<std::size_t>(shape.heads);
    const auto groups = static_cast<std::size_t>(shape.groups);
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    for (int branch = 0; branch < kBranches; ++branch) {
      attention.branch_out[branch] = DeviceBuffer<__nv_bfloat16>(tokens * heads * dim);
      attention.branch_lse[branch] = DeviceBuffer<float>(tokens * heads);
    }
    attention.indices = DeviceBuffer<int32_t>(tokens * groups * kSlots);
    attention.lists = DeviceBuffer<char>(documents_list_bytes(shape, plan));
    if (options.compressed_given && attention.cmp_count > 0) {
      fill_normal(attention.k_cmp.get(), attention.cmp_count, 0.7f, 3);
      fill_normal(attention.v_cmp.get(), attention.cmp_count, 1.0f, 4);
    } else if (!options.compressed_given) {
      const std::size_t rows = std::max<std::size_t>(1, static_cast<std::size_t>(plan.compressed));
      attention.k_cmp = DeviceBuffer<__nv_bfloat16>(rows * groups * dim);
      attention.v_cmp = DeviceBuffer<__nv_bfloat16>(rows * groups * dim);
    }
    attention.workspace = {}; // freed first, because the old one may be larger than both need
    attention.workspace =
        DeviceBuffer<char>(std::max(documents_forward_workspace_bytes(inputs(), plan),
                                    documents_backward_workspace_bytes(inputs(), plan)));
  }

  FusedInputs inputs() const {
    FusedInputs inputs = attention.inputs();
    if (options.compressed_given) inputs.pool_k = inputs.pool_v = nullptr;
    return inputs;
  }
  void forward() {
    cuda_check(launch_documents_forward(inputs(), plan, attention.saved(), attention.out.get(),
                                        attention.workspace.get(), nullptr),
               "forward of documents");
  }
  void backward() {
    cuda_check(launch_documents_backward(inputs(), plan, attention.saved(), attention.gradients(),
                                         attention.workspace.get(), nullptr),
               "backward of documents");
  }

  DocumentsOptions options;
  DocumentPlan plan;
  AttentionCase attention;
};

} // namespace nsa::kernels::check
