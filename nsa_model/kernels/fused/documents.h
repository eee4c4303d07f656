#pragma once
// The whole attention of packed documents. Each document is a separate sequence, so blocks, windows
// and counts restart, and it runs in a batch (document_plan.h). Batches run one after another on a
// stream and share one workspace. Without packed documents there is one batch, in place.
//
// Like launch_fused_forward and launch_fused_backward, it allocates nothing and waits for nothing.

#include "nsa_model/kernels/fused/document_plan.h"
#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels {

// The tensors that the forward saves have the plan's layout. branch_out, branch_lse and indices
// have plan.tokens rows. Pooled keys and values (the k[0] and v[0] of inputs with pool_k) have
// plan.compressed rows, at least one. Only the backward reads them.
std::size_t documents_list_bytes(const AttentionShape& shape, const DocumentPlan& plan);

// Bytes of the kernels' workspace and of the copies of the largest copied batch. A token of the
// padded batch takes, with H query heads, G groups, three branches and pooled keys:
//   forward   2 D (2 H + 6 G) + 12 H bytes, 4.8 KB for H = 12, G = 2, D = 64
//   backward  2 D (3 H + 10 G) + 24 H bytes, 7.5 KB for these
std::size_t documents_forward_workspace_bytes(const FusedInputs& inputs, const DocumentPlan& plan);
std::size_t documents_backward_workspace_bytes(const FusedInputs& inputs, const DocumentPlan& plan);

cudaError_t launch_documents_forward(const FusedInputs& inputs, const DocumentPlan& plan,
                                     const FusedSaved& saved, __nv_bfloat16* out, void* workspace,
                                     cudaStream_t stream);
// The same if the plan is one batch in place. Scratch memory is requested part by part.
bool is_one_in_place(const DocumentPlan& plan);
cudaError_t launch_documents_backward(const FusedInputs& inputs, const DocumentPlan& plan,
                                      const FusedSaved& saved, const FusedGradients& gradients,
                                      const ScratchOf& scratch, cudaStream_t stream);
// Gradients of compressed tokens after a row's last document are not written.
cudaError_t launch_documents_backward(const FusedInputs& inputs, const DocumentPlan& plan,
                                      const FusedSaved& saved, const FusedGradients& gradients,
                                      void* workspace, cudaStream_t stream);

// inputs_in_place() and gradients_in_place() return the rows of an in-place batch in the caller's
// tensors (except its pooled keys). saved_of() returns a batch's part of the saved tensors; its
// lists are at `lists`.
FusedInputs inputs_in_place(const FusedInputs& all, const DocumentBatch& batch);
FusedGradients gradients_in_place(const FusedInputs& inputs, const FusedGradients& all,
                                  const DocumentBatch& batch);
FusedSaved saved_of(const AttentionShape& shape, const FusedSaved& all, const DocumentBatch& batch,
                    void* lists);

} // namespace nsa::kernels
