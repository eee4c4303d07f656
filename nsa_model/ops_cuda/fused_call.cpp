#include "nsa_model/ops_cuda/fused_call.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/common/limits.h"
#include "nsa_model/kernels/fused/documents.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops/segments.h"
#include "nsa_model/ops/selection_probe.h"

#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cmath>
#include <cuda_runtime_api.h>

namespace nsa::ops {
namespace {

using at::Tensor;

// The limits in the kernel plan must equal those that the kernels are compiled for.
static_assert(kernels::kMaxKvHeads == serves::kMostKvHeads &&
              kernels::kMostHeads == serves::kMostGroupHeads &&
              kernels::kMaxSequence == serves::kMostTokens &&
              kernels::kMaxPortableSequence == serves::kMostPortableTokens &&
              INT32_MAX / kernels::kSlots == serves::kMostRows &&
              kernels::kMostSharedBytes == serves::kHopperSharedBytes);
static_assert(kernels::block_lists_shared_bytes(1000) == serves::block_lists_bytes(1000) &&
              kernels::block_lists_shared_bytes(kernels::kMaxSequence) ==
                  serves::block_lists_bytes(kernels::kMaxSequence));
static_assert((kernels::kernel_family(90, 64) == kernels::KernelFamily::kHopper) ==
                  serves::hopper_attention(90, 64) &&
              (kernels::kernel_family(80, 64) == kernels::KernelFamily::kHopper) ==
                  serves::hopper_attention(80, 64) &&
              (kernels::kernel_family(90, 128) == kernels::KernelFamily::kHopper) ==
                  serves::hopper_attention(90, 128));

// Allocates a workspace with undefined contents.
Tensor workspace(const Tensor& like, std::size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
}

__nv_bfloat16* bf16(const Tensor& tensor) {
  return tensor.defined() ? static_cast<__nv_bfloat16*>(tensor.data_ptr()) : nullptr;
}
float* fp32(const Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<float>() : nullptr;
}

// With this few sequences, masks for all tokens are faster than lists if the sequences are short
// enough. This saves 2 % of a step of 8 x 2,048 tokens; with 16 x 2,048 tokens lists save as much
// (lab "query-major-border").
constexpr int64_t kFewSequences = 12;

int compute_capability(const Tensor& tensor) {
  int major = 0;
  int minor = 0;
  const int device = tensor.device().index();
  TORCH_CHECK(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
          cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess,
      "cannot read the compute capability of GPU ", device);
  return 10 * major + minor;
}

void check_tensor(const char* name, const Tensor& tensor, at::IntArrayRef sizes,
                  at::ScalarType type, const Tensor& q) {
  TORCH_CHECK(tensor.sizes() == sizes, "fused attention: ", name, " is ", tensor.sizes(),
              ", expected ", sizes);
  TORCH_CHECK(tensor.scalar_type() == type, "fused attention: ", name, " is ", tensor.scalar_type(),
              ", expected ", type, " (attention.kernels = \"aten\" serves other dtypes)");
  TORCH_CHECK(tensor.device() == q.device(), "fused attention: ", name, " is on ", tensor.device(),
              ", q on ", q.device());
  TORCH_CHECK(tensor.is_contiguous(), "fused attention: ", name, " is not contiguous");
  TORCH_CHECK(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 16 == 0,
              "fused attention: ", name, " does not start on 16 bytes; clone it");
}

// A sequence always has fewer compressed tokens than tokens.
bool pools(const AttentionInputs& in) {
  return in.k[0].has_value() && in.k[0]->dim() == 4 && in.k[0]->size(1) == in.q.size(1);
}

// Inputs without the parts that differ between the passes: pooled keys (take_pooled) and given
// indices.
kernels::FusedInputs kernel_inputs(const AttentionInputs& in, const Settings& settings) {
  const Tensor& q = in.q;
  TORCH_CHECK(q.dim() == 4, "fused attention: q is ", q.sizes(),
              ", expected [batch, sequence, heads, dim]");
  const int64_t batch = q.size(0), sequence = q.size(1), heads = q.size(2), dim = q.size(3);
  int64_t groups = 0;
  for (const OptionalTensor& k : in.k)
    if (k.has_value()) groups = k->size(2);
  TORCH_CHECK(groups > 0, "fused attention: every branch is off");
  const Sizes& z = settings.sizes;
  const std::string reason = why_not_served(
      q, batch, groups, sequence,
      {z.compression_block, z.compression_stride, z.selection_block, z.selected_blocks, z.window});
  TORCH_CHECK(reason.empty(), reason);
  check_tensor("q", q, q.sizes(), at::kBFloat16, q);
  check_tensor("gates", in.gates, {batch, sequence, heads, 3}, at::kFloat, q);

  kernels::FusedInputs out;
  out.shape = {static_cast<int>(batch), static_cast<int>(sequence), static_cast<int>(groups),
               static_cast<int>(heads / groups), static_cast<int>(dim)};
  out.tuning.family = kernels::kernel_family(compute_capability(q), out.shape.head_dim);
  if (!in.document_start.has_value() && batch < kFewSequences &&
      sequence <= kernels::kMostMaskedTokens)
    out.tuning.query_major_tokens = kernels::kMostMaskedTokens;
  // A document has the same bits of dQ alone and in a batch whose padding makes it longer.
  if (in.document_start.has_value())
    out.tuning.compressed_backward_from = kernels::kMaxSequence + 1;
  out.scale = static_cast<float>(settings.scale > 0 ? settings.scale
                                                    : 1.0 / std::sqrt(static_cast<double>(dim)));
  out.q = bf16(q);
  out.gates = fp32(in.gates);
  constexpr const char* kNames[3][2] = {
      {"k_compressed", "v_compressed"}, {"k_selected", "v_selected"}, {"k_sliding", "v_sliding"}};
  for (int branch = 0; branch < 3; ++branch) {
    out.k[branch] = out.v[branch] = nullptr;
    if (!in.k[branch].has_value()) continue;
    const bool pooled = branch == 0 && pools(in);
    const int64_t keys =
        branch == 0 && !pooled ? kernels::compressed_count(static_cast<int>(sequence)) : sequence;
    check_tensor(kNames[branch][0], *in.k[branch], {batch, keys, groups, dim}, at::kBFloat16, q);
    check_tensor(kNames[branch][1], *in.v[branch], {batch, keys, groups, dim}, at::kBFloat16, q);
    if (pooled) {
      out.pool_k = bf16(*in.k[0]);
      out.pool_v = bf16(*in.v[0]);
      out.k[0] = out.pool_k; // a non-null pointer means that the branch is on
      out.v[0] = out.pool_v;
      continue;
    }
    // A short sequence has no compressed token, but its branch is on. Any non-null pointer says so.
    out.k[branch] = keys > 0 ? bf16(*in.k[branch]) : bf16(q);
    out.v[branch] = keys > 0 ? bf16(*in.v[branch]) : bf16(q);
  }
  TORCH_CHECK(out.k[1] == nullptr || out.k[0] != nullptr || in.indices.has_value(),
              "fused attention: the selected branch needs the compressed one to choose blocks, or "
              "given indices");
  return out;
}

void take_pooled(kernels::FusedInputs& kernel, const FusedForward& forward) {
  kernel.k[0] = bf16(forward.pooled_k);
  kernel.v[0] = bf16(forward.pooled_v);
}

kernels::FusedSaved kernel_saved(const FusedForward& forward) {
  kernels::FusedSaved saved;
  for (std::size_t branch = 0; branch < 3; ++branch) {
    saved.branch_out[branch] = bf16(forward.branch_out[branch]);
    saved.branch_lse[branch] = fp32(forward.branch_lse[branch]);
  }
  saved.indices = forward.indices.defined() ? forward.indices.data_ptr<int32_t>() : nullptr;
  saved.lists = forward.lists.defined() ? forward.lists.data_ptr() : nullptr;
  return saved;
}

void check_launch(cudaError_t error, const char* what) {
  TORCH_CHECK(error == cudaSuccess, "fused attention ", what, ": ", cudaGetErrorString(error));
}

// Returns the batches in which the documents of the inputs run. Without packed documents there is
// one batch.
kernels::DocumentPlan plan_of(const AttentionInputs& in, const Settings& settings,
                              const kernels::AttentionShape& shape,
                              const kernels::FusedTuning& tuning) {
  if (!in.document_start.has_value()) return kernels::plan_rows(shape);
  std::vector<kernels::Document> documents;
  for (const Segment& s : segments(shape.batch, shape.sequence, settings.sizes, in.document_start))
    documents.push_back({static_cast<int>(s.row), static_cast<int>(s.document.begin),
                         static_cast<int>(s.document.length()),
                         static_cast<int>(s.document.compressed_begin)});
  return kernels::plan_documents(shape, tuning, documents);
}

// Rows are rounded up to a sixteenth of the batch, because packed documents need other sizes at
// every step. After a few steps the allocator has blocks of all sizes.
int64_t rounded(const AttentionInputs& in, int64_t rows, int64_t all) {
  const int64_t unit = in.document_start.has_value() ? std::max<int64_t>(1, all / 16) : 1;
  return (rows + unit - 1) / unit * unit;
}

// Reports the selection to the probe. In the saved tensors the batches follow each other, and each
// document is as long as its batch.
void tell_selection(const Tensor& indices, const kernels::DocumentPlan& plan, const Sizes& sizes) {
  if (!selection_is_probed()) return;
  std::vector<SelectedRows> documents;
  for (const kernels::DocumentBatch& batch : plan.batches)
    for (std::size_t i = 0; i < batch.documents.size(); ++i)
      documents.push_back(
          {batch.token_begin + static_cast<int64_t>(i) * batch.length, batch.documents[i].length});
  note_selection(indices, documents, sizes);
}

// Counts every part, because one launch sequence computes them all.
void count_parts(const AttentionInputs& in, const kernels::FusedInputs& kernel) {
  using choice::Part;
  const choice::Backend family = kernel.tuning.family == kernels::KernelFamily::kHopper
                                     ? choice::Backend::kSm90
                                     : choice::Backend::kPortable;
  for (int branch = 0; branch < 3; ++branch)
    if (kernel.k[branch] != nullptr) count_kernel(Part(branch), family);
  if (pools(in)) count_kernel(Part::kCompression, family);
  // The kernels also choose blocks for shorter sequences, but then they choose all causal ones.
  if (kernel.k[1] != nullptr && kernel.given_indices == nullptr &&
      kernel.shape.sequence > kernels::kSlots * kernels::kBlock)
    count_kernel(Part::kSelection, family);
}

} // namespace

std::string why_not_served(const Tensor& q, int64_t batch, int64_t groups, int64_t sequence,
                           at::IntArrayRef sizes) {
  TORCH_CHECK(sizes.size() == 5, "why_not_fused takes five sizes, got ", sizes);
  const serves::Reasons reasons =
      serves::why_not_attention({.compute_capability = compute_capability(q),
                                 .batch = batch,
                                 .sequence = sequence,
                                 .heads = q.size(-2),
                                 .groups = groups,
                                 .head_dimension = q.size(-1),
                                 .nsa = {.compression_block = sizes[0],
                                         .compression_stride = sizes[1],
                                         .selection_block = sizes[2],
                                         .selected_blocks = sizes[3],
                                         .window = sizes[4]}});
  return reasons.empty() ? "" : reasons.front().text + "; use attention.kernels = \"aten\"";
}

int64_t compute_capability_of(const Tensor& like) {
  return compute_capability(like);
}

std::string serving_kernels(const Tensor& q) {
  const bool hopper = kernels::kernel_family(compute_capability(q), static_cast<int>(q.size(-1))) ==
                      kernels::KernelFamily::kHopper;
  return hopper ? "hopper" : "portable";
}

FusedForward fused_forward(const AttentionInputs& inputs, const Settings& settings) {
  const c10::DeviceGuard guard(inputs.q.device());
  const Tensor& q = inputs.q;
  FusedForward result;
  kernels::FusedInputs kernel = kernel_inputs(inputs, settings);
  if (inputs.indices.has_value()) {
    check_tensor("indices", *inputs.indices,
                 {q.size(0), q.size(1), kernel.shape.groups, kernels::kSlots}, at::kInt, q);
    kernel.given_indices = inputs.indices->data_ptr<int32_t>();
  }
  count_parts(inputs, kernel);
  const kernels::DocumentPlan plan = plan_of(inputs, settings, kernel.shape, kernel.tuning);
  if (pools(inputs)) { // at least one row, because a branch with a null pointer counts as off
    const Tensor& k = *inputs.k[0];
    const int64_t count = rounded(inputs, std::max<int64_t>(plan.compressed, 1),
                                  q.size(0) * q.size(1) / kernels::kCompressStride);
    result.pooled_k = at::empty({count, k.size(2), k.size(3)}, k.options());
    result.pooled_v = at::empty_like(result.pooled_k);
    take_pooled(kernel, result);
  }
  result.out = at::empty_like(q);
  const int64_t tokens = rounded(inputs, plan.tokens, q.size(0) * q.size(1));
  for (std::size_t branch = 0; branch < 3; ++branch) {
    if (kernel.k[branch] == nullptr) continue;
    result.branch_out[branch] = at::empty({tokens, q.size(2), q.size(3)}, q.options());
    result.branch_lse[branch] = at::empty({tokens, q.size(2)}, q.options().dtype(at::kFloat));
  }
  if (kernel.k[1] != nullptr) {
    result.indices =
        at::empty({tokens, kernel.shape.groups, kernels::kSlots}, q.options().dtype(at::kInt));
    result.lists = workspace(q, kernels::documents_list_bytes(kernel.shape, plan));
  }
  const Tensor scratch = workspace(q, kernels::documents_forward_workspace_bytes(kernel, plan));
  check_launch(kernels::launch_documents_forward(kernel, plan, kernel_saved(result),
                                                 bf16(result.out), scratch.data_ptr(),
                                                 c10::cuda::getCurrentCUDAStream().stream()),
               "forward");
  if (kernel.k[1] != nullptr && !inputs.indices.has_value())
    tell_selection(result.indices, plan, settings.sizes);
  return result;
}

FusedBackward fused_backward(const AttentionInputs& inputs, const Settings& settings,
                             FusedForward forward, const Tensor& grad_out) {
  const c10::DeviceGuard guard(inputs.q.device());
  kernels::FusedInputs kernel = kernel_inputs(inputs, settings);
  if (pools(inputs)) take_pooled(kernel, forward);
  if (inputs.indices.has_value()) kernel.given_indices = forward.indices.data_ptr<int32_t>();
  check_tensor("the output's gradient", grad_out, inputs.q.sizes(), at::kBFloat16, inputs.q);
  FusedBackward result;
  result.q = at::empty_like(inputs.q);
  result.gates = at::empty_like(inputs.gates);
  kernels::FusedGradients gradients;
  gradients.d_out = bf16(grad_out);
  gradients.d_q = bf16(result.q);
  gradients.d_gates = fp32(result.gates);
  for (std::size_t branch = 0; branch < 3; ++branch) {
    gradients.d_k[branch] = gradients.d_v[branch] = nullptr;
    if (kernel.k[branch] == nullptr) continue;
    // Compressed tokens after a row's last document are seen by no query, so zeros suffice.
    const bool padded = branch == 0 && inputs.document_start.has_value() && !pools(inputs);
    const auto like = [&](const Tensor& t) {
      return padded ? at::zeros_like(t) : at::empty_like(t);
    };
    result.k[branch] = like(*inputs.k[branch]);
    result.v[branch] = like(*inputs.v[branch]);
    gradients.d_k[branch] = bf16(result.k[branch]);
    gradients.d_v[branch] = bf16(result.v[branch]);
  }
  const kernels::DocumentPlan plan = plan_of(inputs, settings, kernel.shape, kernel.tuning);
  const kernels::FusedSaved saved = kernel_saved(forward);
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  if (!kernels::is_one_in_place(plan)) {
    const Tensor scratch =
        workspace(inputs.q, kernels::documents_backward_workspace_bytes(kernel, plan));
    check_launch(kernels::launch_documents_backward(kernel, plan, saved, gradients,
                                                    scratch.data_ptr(), stream),
                 "backward");
    return result;
  }
  Tensor kept, part;
  const auto scratch = [&](kernels::ScratchPart which, std::size_t bytes) {
    Tensor& held = which == kernels::ScratchPart::kKept ? kept : part;
    held.reset();
    if (which == kernels::ScratchPart::kLists)
      for (Tensor& out : forward.branch_out)
        out.reset();
    held = workspace(inputs.q, bytes);
    return held.data_ptr();
  };
  check_launch(kernels::launch_documents_backward(kernel, plan, saved, gradients, scratch, stream),
               "backward");
  return result;
}

} // namespace nsa::ops
