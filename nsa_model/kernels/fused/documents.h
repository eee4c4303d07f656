#pragma once
// The whole attention of packed documents: each is a sequence of its own, so blocks, windows and
// counts restart, and runs as one of a batch (document_plan.h). Batches run one after another on a
// stream and share one workspace. Without packed documents the batch is one, as it is.
//
// As launch_fused_forward and launch_fused_backward, nothing is allocated and nothing waits.

#include "nsa_model/kernels/fused/document_plan.h"
#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels {

// What the forward saves has the plan's layout: branch_out, branch_lse and indices have plan.tokens
// rows, pooled keys and values (the k[0] and v[0] of inputs with pool_k) plan.compressed, at least
// one. Nothing but the backward reads it.
std::size_t documents_list_bytes(const AttentionShape& shape, const DocumentPlan& plan);

// The kernels' workspace, and the copies of the largest batch that is copied. With H query heads, G
// groups, three branches and pooled keys, the copies of a token of the filled batch take
// 2 D (2 H + 6 G) + 12 H bytes in the forward and 2 D (3 H + 10 G) + 24 H in the backward. With
// H = 12, G = 2, D = 64 that is 4.8 and 7.5 KB.
std::size_t documents_forward_workspace_bytes(const FusedInputs& inputs, const DocumentPlan& plan);
std::size_t documents_backward_workspace_bytes(const FusedInputs& inputs, const DocumentPlan& plan);

cudaError_t launch_documents_forward(const FusedInputs& inputs, const DocumentPlan& plan,
                                     const FusedSaved& saved, __nv_bfloat16* out, void* workspace,
                                     cudaStream_t stream);
// The same where the plan is one batch that lies in place: scratch memory is asked for part by
// part.
bool is_one_in_place(const DocumentPlan& plan);
cudaError_t launch_documents_backward(const FusedInputs& inputs, const DocumentPlan& plan,
                                      const FusedSaved& saved, const FusedGradients& gradients,
                                      const ScratchOf& scratch, cudaStream_t stream);
// Gradients of compressed tokens behind a row's last document are not written.
cudaError_t launch_documents_backward(const FusedInputs& inputs, const DocumentPlan& plan,
                                      const FusedSaved& saved, const FusedGradients& gradients,
                                      void* workspace, cudaStream_t stream);

// A batch that lies in place among the tensors of the caller (its pooled keys apart), and a batch's
// part of what the forward saves; its lists stand at `lists`.
FusedInputs inputs_in_place(const FusedInputs& all, const DocumentBatch& batch);
FusedGradients gradients_in_place(const FusedInputs& inputs, const FusedGradients& all,
                                  const DocumentBatch& batch);
FusedSaved saved_of(const AttentionShape& shape, const FusedSaved& all, const DocumentBatch& batch,
                    void* lists);

} // namespace nsa::kernels
