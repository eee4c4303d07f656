// The operations of nsa_model/ops/layer.h for CUDA. The kernels compute BF16 in one pass. Other
// dtypes and widths are composed of ATen operations.
#include "nsa_model/ops/layer.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/cross_entropy/cross_entropy.h"
#include "nsa_model/kernels/group_gate/group_gate.h"
#include "nsa_model/kernels/head_split/head_split.h"
#include "nsa_model/kernels/rms_norm/rms_norm.h"
#include "nsa_model/ops/kernel_counts.h"
#include "nsa_model/ops_cuda/launch.h"

#include <algorithm>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace nsa::ops::on_cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

static_assert(serves::kMostHeadSets == kernels::kMaxHeadSets &&
              serves::group_gate(kernels::kGateWidth, kernels::kGateHidden,
                                 kernels::kGateBranches));

__nv_bfloat16* bf16_or_null(const OptionalTensor& tensor) {
  return tensor.has_value() ? bf16(*tensor) : nullptr;
}
bool is_served(const Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 && is_aligned(tensor);
}
bool is_served(const OptionalTensor& tensor) {
  return !tensor.has_value() || is_served(*tensor);
}
bool is_served(at::TensorList tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return is_served(t); });
}
int32_t count_of(int64_t value) {
  TORCH_CHECK(value <= INT32_MAX, "nsa: ", value, " rows are too many for one launch");
  return static_cast<int32_t>(value);
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(const Tensor& x, const OptionalTensor& addend,
                                                const Tensor& gain, double epsilon) {
  checked::add_rms_norm(x, addend, gain);
  const int64_t columns = x.size(-1);
  if (!serves::norm(columns) || !is_served(x) || !is_served(addend) || !is_served(gain))
    return composed::add_rms_norm(x, addend, gain, epsilon);
  const c10::DeviceGuard guard(x.device());
  const int64_t rows = x.numel() / columns;
  const Tensor sum = addend.has_value() ? at::empty_like(x) : at::empty({0}, x.options());
  const Tensor normed = at::empty_like(x);
  const Tensor inverse = at::empty({rows}, x.options().dtype(at::kFloat));
  count_kernel(choice::Part::kNorm, choice::Backend::kPortable);
  kernels::AddRmsNormParams params{};
  params.rows = count_of(rows);
  params.columns = static_cast<int>(columns);
  params.epsilon = static_cast<float>(epsilon);
  params.x = bf16(x);
  params.addend = bf16_or_null(addend);
  params.gain = bf16(gain);
  params.sum = bf16(sum);
  params.normed = bf16(normed);
  params.inverse = inverse.data_ptr<float>();
  check_cuda(kernels::launch_add_rms_norm(params, current_stream()), "add_rms_norm");
  return {sum, normed, inverse};
}

std::tuple<Tensor, Tensor> add_rms_norm_backward(const Tensor& d_normed,
                                                 const OptionalTensor& d_sum, const Tensor& sum,
                                                 const Tensor& inverse, const Tensor& gain) {
  checked::add_rms_norm_backward(d_normed, d_sum, sum, inverse, gain);
  const int64_t columns = sum.size(-1);
  if (!serves::norm(columns) || !is_served(d_normed) || !is_served(d_sum) || !is_served(sum) ||
      !is_served(gain) || !inverse.is_contiguous())
    return composed::add_rms_norm_backward(d_normed, d_sum, sum, inverse, gain);
  const c10::DeviceGuard guard(sum.device());
  const Tensor d_x = at::empty_like(sum);
  const Tensor d_gain = at::empty_like(gain);
  const auto partials = static_cast<int64_t>(kernels::rms_norm_partials(static_cast<int>(columns)));
  const Tensor partial = at::empty({partials}, sum.options().dtype(at::kFloat));
  count_kernel(choice::Part::kNorm, choice::Backend::kPortable);
  kernels::AddRmsNormBackwardParams params{};
  params.rows = count_of(sum.numel() / columns);
  params.columns = static_cast<int>(columns);
  params.d_normed = bf16(d_normed);
  params.d_sum = bf16_or_null(d_sum);
  params.sum = bf16(sum);
  params.inverse = inverse.data_ptr<float>();
  params.gain = bf16(gain);
  params.d_x = bf16(d_x);
  params.partial = partial.data_ptr<float>();
  params.d_gain = bf16(d_gain);
  check_cuda(kernels::launch_add_rms_norm_backward(params, current_stream()),
             "add_rms_norm_backward");
  return {d_x, d_gain};
}

kernels::HeadLayout layout_of(const Tensor& q, int64_t sets, int64_t groups, int64_t rotated,
                              const Tensor& cos, const Tensor& sin) {
  kernels::HeadLayout layout{};
  layout.tokens = q.size(0) * q.size(1);
  layout.sequence = count_of(q.size(1));
  layout.heads = static_cast<int>(q.size(2));
  layout.groups = static_cast<int>(groups);
  layout.head_dim = static_cast<int>(q.size(3));
  layout.sets = static_cast<int>(sets);
  layout.rotated = static_cast<int>(rotated);
  layout.table_per_token = cos.size(0) != q.size(1);
  layout.cos = cos.data_ptr<float>();
  layout.sin = sin.data_ptr<float>();
  return layout;
}
bool are_tables(const Tensor& cos, const Tensor& sin) {
  return cos.scalar_type() == at::kFloat && sin.scalar_type() == at::kFloat &&
         cos.is_contiguous() && sin.is_contiguous();
}

std::vector<Tensor> split_heads(const Tensor& joined, const Tensor& cos, const Tensor& sin,
                                int64_t heads, int64_t groups, int64_t head_dimension,
                                int64_t rotated, bool mean) {
  checked::split_heads(joined, cos, sin, heads, groups, head_dimension, rotated, mean);
  const int64_t sets = (joined.size(2) / head_dimension - heads) / groups;
  if (!is_served(joined) || !are_tables(cos, sin) || !serves::head_split(head_dimension, sets))
    return composed::split_heads(joined, cos, sin, heads, groups, head_dimension, rotated, mean);
  const c10::DeviceGuard guard(joined.device());
  const auto part = [&](int64_t count) {
    return at::empty({joined.size(0), joined.size(1), count, head_dimension}, joined.options());
  };
  std::vector<Tensor> parts{part(heads)};
  count_kernel(choice::Part::kRotation, choice::Backend::kPortable);
  kernels::HeadSplitParams params{};
  params.layout = layout_of(parts[0], sets, groups, rotated, cos, sin);
  params.joined = bf16(joined);
  params.q = bf16(parts[0]);
  for (int64_t set = 0; set < sets; ++set) {
    parts.push_back(part(groups));
    params.set[set] = bf16(parts.back());
  }
  if (mean) {
    parts.push_back(part(groups));
    params.mean = bf16(parts.back());
  }
  check_cuda(kernels::launch_head_split(params, current_stream()), "split_heads");
  return parts;
}

Tensor split_heads_backward(at::TensorList grads, const Tensor& cos, const Tensor& sin,
                            int64_t rotated, bool mean) {
  checked::split_heads_backward(grads, cos, sin, rotated, mean);
  const int64_t sets = static_cast<int64_t>(grads.size()) - 1 - (mean ? 1 : 0);
  const Tensor& d_q = grads[0];
  if (!is_served(grads) || !are_tables(cos, sin) || !serves::head_split(d_q.size(3), sets))
    return composed::split_heads_backward(grads, cos, sin, rotated, mean);
  const c10::DeviceGuard guard(d_q.device());
  const int64_t groups = grads[1].size(2);
  count_kernel(choice::Part::kRotation, choice::Backend::kPortable);
  kernels::HeadSplitBackwardParams params{};
  params.layout = layout_of(d_q, sets, groups, rotated, cos, sin);
  params.d_q = bf16(d_q);
  for (int64_t set = 0; set < sets; ++set)
    params.d_set[set] = bf16(grads[static_cast<std::size_t>(set) + 1]);
  if (mean) params.d_mean = bf16(grads.back());
  const Tensor d_joined = at::empty(
      {d_q.size(0), d_q.size(1), (d_q.size(2) + sets * groups) * d_q.size(3)}, d_q.options());
  params.d_joined = bf16(d_joined);
  check_cuda(kernels::launch_head_split_backward(params, current_stream()), "split_heads_backward");
  return d_joined;
}

bool is_served_gate(const Tensor& mean, const Tensor& fc1, const Tensor& fc2) {
  return is_served(mean) && is_served(fc1) && is_served(fc2) &&
         serves::group_gate(mean.size(3), fc1.size(0), fc2.size(0));
}

Tensor group_gates(const Tensor& mean, const Tensor& fc1, const Tensor& fc2, double temperature,
                   int64_t heads) {
  checked::group_gates(mean, fc1, fc2, heads);
  if (!is_served_gate(mean, fc1, fc2))
    return composed::group_gates(mean, fc1, fc2, temperature, heads);
  const c10::DeviceGuard guard(mean.device());
  const Tensor gates = at::empty({mean.size(0), mean.size(1), heads, kernels::kGateBranches},
                                 mean.options().dtype(at::kFloat));
  count_kernel(choice::Part::kGate, choice::Backend::kPortable);
  kernels::GroupGateParams params{};
  params.rows = mean.size(0) * mean.size(1) * mean.size(2);
  params.heads = static_cast<int>(heads / mean.size(2));
  params.inverse_temperature = static_cast<float>(1.0 / temperature);
  params.mean = bf16(mean);
  params.fc1 = bf16(fc1);
  params.fc2 = bf16(fc2);
  params.gates = gates.data_ptr<float>();
  check_cuda(kernels::launch_group_gate(params, current_stream()), "group_gates");
  return gates;
}

std::tuple<Tensor, Tensor, Tensor> group_gates_backward(const Tensor& d_gates, const Tensor& gates,
                                                        const Tensor& mean, const Tensor& fc1,
                                                        const Tensor& fc2, double temperature) {
  checked::group_gates_backward(d_gates, gates, mean, fc1, fc2);
  if (!is_served_gate(mean, fc1, fc2) || !d_gates.is_contiguous() || !gates.is_contiguous())
    return composed::group_gates_backward(d_gates, gates, mean, fc1, fc2, temperature);
  const c10::DeviceGuard guard(mean.device());
  const Tensor d_mean = at::empty_like(mean), d_fc1 = at::empty_like(fc1),
               d_fc2 = at::empty_like(fc2);
  const Tensor partial = at::empty({static_cast<int64_t>(kernels::group_gate_partials())},
                                   mean.options().dtype(at::kFloat));
  count_kernel(choice::Part::kGate, choice::Backend::kPortable);
  kernels::GroupGateBackwardParams params{};
  params.rows = mean.size(0) * mean.size(1) * mean.size(2);
  params.heads = static_cast<int>(gates.size(2) / mean.size(2));
  params.inverse_temperature = static_cast<float>(1.0 / temperature);
  params.d_gates = d_gates.data_ptr<float>();
  params.gates = gates.data_ptr<float>();
  params.mean = bf16(mean);
  params.fc1 = bf16(fc1);
  params.fc2 = bf16(fc2);
  params.partial = partial.data_ptr<float>();
  params.d_mean = bf16(d_mean);
  params.d_fc1 = bf16(d_fc1);
  params.d_fc2 = bf16(d_fc2);
  check_cuda(kernels::launch_group_gate_backward(params, current_stream()), "group_gates_backward");
  return {d_mean, d_fc1, d_fc2};
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): all devices register one signature
Tensor cross_entropy_(Tensor logits, const Tensor& labels, const Tensor& weight, bool gradient) {
  checked::cross_entropy_(logits, labels, weight);
  if (!is_served(logits) || !serves::loss(logits.size(1)) || !labels.is_contiguous() ||
      !weight.is_contiguous())
    return composed::cross_entropy_(logits, labels, weight, gradient);
  const c10::DeviceGuard guard(logits.device());
  const Tensor loss = at::empty({logits.size(0)}, weight.options());
  count_kernel(choice::Part::kLoss, choice::Backend::kPortable);
  kernels::CrossEntropyParams params{};
  params.rows = count_of(logits.size(0));
  params.columns = static_cast<int>(logits.size(1));
  params.logits = bf16(logits);
  params.labels = labels.data_ptr<int64_t>();
  params.weight = weight.data_ptr<float>();
  params.loss = loss.data_ptr<float>();
  params.gradient = gradient;
  check_cuda(kernels::launch_cross_entropy(params, current_stream()), "cross_entropy_");
  return loss;
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("add_rms_norm", &add_rms_norm);
  library.impl("add_rms_norm_backward", &add_rms_norm_backward);
  library.impl("split_heads", &split_heads);
  library.impl("split_heads_backward", &split_heads_backward);
  library.impl("group_gates", &group_gates);
  library.impl("group_gates_backward", &group_gates_backward);
  library.impl("cross_entropy_", &cross_entropy_);
}

} // namespace nsa::ops::on_cuda
