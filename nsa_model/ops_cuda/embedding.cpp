// The operation of nsa_model/ops/embedding.h for CUDA.
#include "nsa_model/ops/embedding.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/embedding_gradient/embedding_gradient.h"
#include "nsa_model/ops/kernel_counts.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

namespace nsa::ops::on_cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

bool is_ready(const Tensor& tensor, at::ScalarType type) {
  return tensor.scalar_type() == type && tensor.is_contiguous() &&
         reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 16 == 0;
}

// Whether the kernel takes the second list, or there is none.
bool are_served(const OptionalTensor& rows, const OptionalTensor& ids,
                const OptionalTensor& factors, bool has_base, const Tensor& d_out) {
  if (!rows && !ids && !factors) return true;
  return rows && ids && factors && has_base && is_ready(*rows, at::kBFloat16) && rows->dim() == 2 &&
         rows->size(1) == d_out.size(1) && rows->size(0) <= serves::kMostLookups &&
         ids->dim() == 1 && ids->size(0) == rows->size(0) && ids->is_contiguous() &&
         ids->scalar_type() == at::kLong && factors->sizes() == ids->sizes() &&
         factors->is_contiguous() && factors->scalar_type() == at::kFloat &&
         rows->device() == d_out.device() && ids->device() == d_out.device() &&
         factors->device() == d_out.device();
}

Tensor embedding_gradient(const Tensor& d_out, const Tensor& ids, int64_t rows,
                          const OptionalTensor& base, const OptionalTensor& scale,
                          const OptionalTensor& other_rows, const OptionalTensor& other_ids,
                          const OptionalTensor& other_factors) {
  const bool served =
      are_served(other_rows, other_ids, other_factors, base.has_value(), d_out) &&
      d_out.dim() == 2 && ids.dim() == 1 && ids.size(0) == d_out.size(0) &&
      serves::embedding_gradient(d_out.size(0), rows, d_out.size(1)) &&
      is_ready(d_out, at::kBFloat16) && ids.is_contiguous() && ids.scalar_type() == at::kLong &&
      base.has_value() == scale.has_value() &&
      (!base || (is_ready(*base, at::kFloat) && base->dim() == 2 && base->size(0) == rows &&
                 base->size(1) == d_out.size(1) && scale->scalar_type() == at::kFloat &&
                 scale->numel() == 1 && scale->device() == d_out.device()));
  if (!served)
    return composed::embedding_gradient(d_out, ids, rows, base, scale, other_rows, other_ids,
                                        other_factors);
  const c10::DeviceGuard guard(d_out.device());
  count_kernel(choice::Part::kEmbeddingGradient, choice::Backend::kPortable);
  kernels::EmbeddingGradientParams params{};
  params.tokens = static_cast<int>(d_out.size(0));
  params.rows = static_cast<int>(rows);
  params.columns = static_cast<int>(d_out.size(1));
  if (other_rows) {
    params.others = static_cast<int>(other_rows->size(0));
    params.other_ids = other_ids->const_data_ptr<int64_t>();
    params.other_rows = static_cast<const __nv_bfloat16*>(other_rows->const_data_ptr());
    params.other_factors = other_factors->const_data_ptr<float>();
  }
  const auto words = static_cast<int64_t>(kernels::embedding_gradient_workspace(
      params.tokens + params.others, params.rows, params.columns));
  const Tensor workspace = at::empty({words}, d_out.options().dtype(at::kInt));
  const Tensor d_table = at::empty({rows, d_out.size(1)}, d_out.options());
  params.ids = ids.const_data_ptr<int64_t>();
  params.d_out = static_cast<const __nv_bfloat16*>(d_out.const_data_ptr());
  params.base = base ? base->const_data_ptr<float>() : nullptr;
  params.scale = scale ? scale->const_data_ptr<float>() : nullptr;
  params.workspace = workspace.mutable_data_ptr<int32_t>();
  params.d_table = static_cast<__nv_bfloat16*>(d_table.mutable_data_ptr());
  const cudaError_t error =
      kernels::launch_embedding_gradient(params, c10::cuda::getCurrentCUDAStream().stream());
  TORCH_CHECK(error == cudaSuccess, "embedding_gradient: ", cudaGetErrorString(error));
  return d_table;
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("embedding_gradient", &embedding_gradient);
}

} // namespace nsa::ops::on_cuda
