// The operation of nsa_model/ops/selection_probe.h for CUDA.
#include "nsa_model/ops/selection_probe.h"

#include "nsa_model/kernels/layer_sample/layer_sample.h"
#include "nsa_model/ops_cuda/launch.h"

#include <algorithm>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace nsa::ops::on_cuda {
namespace {

using at::Tensor;

bool is_served(const Tensor& blocks) {
  return blocks.scalar_type() == at::kInt && blocks.dim() == 3 && is_aligned(blocks) &&
         blocks.size(1) * blocks.size(2) % 4 == 0;
}

void layer_sample_(at::TensorList samples, at::TensorList blocks, const Tensor& rows) {
  const auto all_served = [](at::TensorList all) {
    return std::all_of(all.begin(), all.end(), [](const Tensor& x) { return is_served(x); });
  };
  if (samples.empty() || samples.size() != blocks.size() || !all_served(samples) ||
      !all_served(blocks) || !rows.is_contiguous() || rows.scalar_type() != at::kLong) {
    composed::layer_sample_(samples, blocks, rows);
    return;
  }
  const c10::DeviceGuard guard(rows.device());
  kernels::LayerSampleParams params{};
  params.rows = static_cast<int>(rows.size(0));
  params.width = static_cast<int>(blocks[0].size(1) * blocks[0].size(2));
  params.from = rows.const_data_ptr<int64_t>();
  for (size_t i = 0; i < samples.size(); ++i) {
    TORCH_CHECK(samples[i].sizes().slice(1) == blocks[0].sizes().slice(1) &&
                    blocks[i].sizes().slice(1) == blocks[0].sizes().slice(1) &&
                    samples[i].size(0) == rows.size(0),
                "nsa: layer_sample_: ", rows.size(0), " rows of ", blocks[i].sizes(),
                " do not fit a sample of ", samples[i].sizes());
    params.blocks[params.layers] = blocks[i].const_data_ptr<int32_t>();
    params.sample[params.layers] = samples[i].mutable_data_ptr<int32_t>();
    if (++params.layers < kernels::kSampledAtOnce && i + 1 < samples.size()) continue;
    check_cuda(kernels::launch_layer_sample(params, current_stream()), "layer_sample_");
    params.layers = 0;
  }
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("layer_sample_", &layer_sample_);
}

} // namespace nsa::ops::on_cuda
