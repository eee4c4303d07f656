// The operations of nsa_model/ops/update.h for CUDA.
#include "nsa_model/ops/update.h"

#include "nsa_model/kernels/update/update.h"
#include "nsa_model/ops_cuda/launch.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

namespace nsa::ops::on_cuda {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

void add_gradients_(const Tensor& sums, at::TensorList gradients, at::IntArrayRef offsets,
                    bool first) {
  TORCH_CHECK(gradients.size() == offsets.size() && sums.is_contiguous() &&
                  sums.scalar_type() == at::kFloat,
              "nsa: add_gradients_: FP32 sums, and an offset for each gradient");
  const c10::DeviceGuard guard(sums.device());
  kernels::AddGradientsParams params{};
  params.first = first;
  params.sums = sums.data_ptr<float>();
  const auto launch = [&] {
    check_cuda(kernels::launch_add_gradients(params, current_stream()), "add_gradients_");
    params.gradients = 0;
  };
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& gradient = gradients[i];
    TORCH_CHECK(offsets[i] >= 0 && offsets[i] + gradient.numel() <= sums.numel() &&
                    gradient.device() == sums.device(),
                "nsa: add_gradients_: gradient ", i, " of ", gradient.sizes(), " at ", offsets[i],
                " is not within ", sums.numel(), " sums on ", sums.device());
    const bool served = gradient.scalar_type() == at::kBFloat16 && gradient.is_contiguous() &&
                        is_aligned(gradient.data_ptr()) && is_aligned(params.sums + offsets[i]);
    if (!served) { // other dtypes, and layouts that autograd may have left
      const Tensor sum = sums.narrow(0, offsets[i], gradient.numel()).view(gradient.sizes());
      if (first)
        sum.copy_(gradient);
      else
        sum.add_(gradient);
      continue;
    }
    params.gradient[params.gradients] = static_cast<const __nv_bfloat16*>(gradient.data_ptr());
    params.offset[params.gradients] = offsets[i];
    params.count[params.gradients] = gradient.numel();
    if (++params.gradients == kernels::kGradientsAtOnce) launch();
  }
  launch();
}

kernels::UpdateMode mode_of(const Tensor& values, const Tensor& moments,
                            const OptionalTensor& weights) {
  if (values.scalar_type() == at::kFloat)
    return weights ? kernels::UpdateMode::kMaster : kernels::UpdateMode::kFp32;
  return moments.scalar_type() == at::kFloat ? kernels::UpdateMode::kStochastic
                                             : kernels::UpdateMode::kPure;
}

constexpr int64_t kControlWords = sizeof(kernels::UpdateControl) / sizeof(float);

void check_scalars(std::initializer_list<const Tensor*> scalars, const char* where) {
  for (const Tensor* scalar : scalars)
    TORCH_CHECK(scalar->numel() == 1 && scalar->scalar_type() == at::kFloat &&
                    scalar->device() == (*scalars.begin())->device(),
                "nsa: ", where, ": sums, loss and the count of updates are FP32 scalars on ",
                (*scalars.begin())->device());
}

void square_sum_(const Tensor& sum, at::TensorList parts) {
  check_scalars({&sum}, "square_sum_");
  const c10::DeviceGuard guard(sum.device());
  const Tensor partial =
      at::empty({static_cast<int64_t>(kernels::update_partials())}, sum.options());
  kernels::SquareSumParams params{};
  params.partial = partial.data_ptr<float>();
  for (const Tensor& part : parts) {
    TORCH_CHECK(part.scalar_type() == at::kFloat && part.is_contiguous() &&
                    part.device() == sum.device() && is_aligned(part.data_ptr()) &&
                    part.numel() % kernels::kSlotElements == 0,
                "nsa: square_sum_: a part of ", part.sizes(), " ", part.scalar_type(),
                ", expected contiguous FP32, a multiple of ", kernels::kSlotElements);
    params.count = part.numel();
    params.gradients = part.data_ptr<float>();
    check_cuda(kernels::launch_partial_squares(params, current_stream()), "square_sum_");
    params.first = false;
  }
  if (params.first) {
    sum.zero_();
    return;
  }
  check_cuda(kernels::launch_square_sum(params.partial, sum.data_ptr<float>(), current_stream()),
             "square_sum_");
}

kernels::GradientPieces pieces_of(at::TensorList gradients, at::IntArrayRef offsets,
                                  at::Device device) {
  static_assert(kMostPieces == kernels::kMostPieces);
  TORCH_CHECK(gradients.size() == offsets.size() && gradients.size() <= kMostPieces,
              "nsa: ", gradients.size(), " pieces with ", offsets.size(), " offsets, at most ",
              kMostPieces);
  kernels::GradientPieces pieces;
  int64_t end = 0; // of the pieces before
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Tensor& gradient = gradients[i];
    TORCH_CHECK(is_piece(gradient) && gradient.device() == device && offsets[i] >= end &&
                    offsets[i] % kernels::kSlotElements == 0 &&
                    offsets[i] / kernels::kPieceElements <= int64_t{UINT32_MAX},
                "nsa: piece ", i, " of ", gradient.sizes(), " ", gradient.scalar_type(), " at ",
                offsets[i], " is no BF16 gradient after the others");
    pieces.begin[i] = static_cast<uint32_t>(offsets[i] / kernels::kPieceElements);
    pieces.count[i] = static_cast<uint32_t>(gradient.numel() / kernels::kPieceElements);
    pieces.gradient[i] = static_cast<const __nv_bfloat16*>(gradient.const_data_ptr());
    end = offsets[i] + gradient.numel();
  }
  pieces.pieces = static_cast<int>(gradients.size());
  return pieces;
}

void piece_square_sum_(const Tensor& sum, at::TensorList gradients, at::IntArrayRef offsets,
                       at::IntArrayRef ranges) {
  check_scalars({&sum}, "piece_square_sum_");
  const c10::DeviceGuard guard(sum.device());
  const kernels::GradientPieces pieces = pieces_of(gradients, offsets, sum.device());
  const Tensor partial =
      at::empty({static_cast<int64_t>(kernels::update_partials())}, sum.options());
  TORCH_CHECK(ranges.size() >= 2 && ranges.size() % 2 == 0,
              "nsa: piece_square_sum_: a begin and an end of each range");
  kernels::SquareSumParams params{};
  params.partial = partial.data_ptr<float>();
  params.pieces = &pieces;
  for (size_t i = 0; i < ranges.size(); i += 2) {
    params.begin = ranges[i];
    params.count = ranges[i + 1] - ranges[i];
    TORCH_CHECK(params.begin >= 0 && params.begin % kernels::kSlotElements == 0 &&
                    params.count >= 0,
                "nsa: piece_square_sum_: range ", ranges[i], " to ", ranges[i + 1]);
    check_cuda(kernels::launch_partial_squares(params, current_stream()), "piece_square_sum_");
    params.first = false;
  }
  check_cuda(kernels::launch_square_sum(params.partial, sum.data_ptr<float>(), current_stream()),
             "piece_square_sum_");
}

Tensor update_control_(const Tensor& square_sum, const Tensor& loss, const Tensor& updates,
                       double learning_rate, double beta1, double beta2, double clip) {
  check_scalars({&square_sum, &loss, &updates}, "update_control_");
  const c10::DeviceGuard guard(square_sum.device());
  const Tensor control = at::empty({kControlWords}, square_sum.options());
  kernels::UpdateControlParams params{};
  params.square_sum = square_sum.data_ptr<float>();
  params.loss = loss.data_ptr<float>();
  params.updates = updates.data_ptr<float>();
  params.control = static_cast<kernels::UpdateControl*>(control.data_ptr());
  params.scalars = {learning_rate, beta1, beta2, 0.0, 0.0, clip};
  check_cuda(kernels::launch_update_control(params, current_stream()), "update_control_");
  return control;
}

void adamw_(const Tensor& values, const Tensor& first_moments, const Tensor& second_moments,
            const OptionalTensor& weights, const OptionalTensor& gradients,
            at::TensorList piece_gradients, at::IntArrayRef piece_offsets, const Tensor& decayed,
            const Tensor& updates, const Tensor& control, double learning_rate, double beta1,
            double beta2, double weight_decay, double epsilon, int64_t seed, int64_t offset) {
  const int64_t count = values.numel();
  const auto check = [&](const Tensor& tensor, const char* name, bool bf16_too) {
    const auto type = tensor.scalar_type();
    TORCH_CHECK(tensor.numel() == count && tensor.is_contiguous() &&
                    tensor.device() == values.device() && is_aligned(tensor.data_ptr()) &&
                    (type == at::kFloat || (bf16_too && type == at::kBFloat16)),
                "nsa: adamw_: ", name, " is ", tensor.sizes(), " ", type, ", for ", count,
                " values");
  };
  check(values, "values", true);
  check(first_moments, "first_moments", true);
  check(second_moments, "second_moments", true);
  if (gradients)
    check(*gradients, "gradients", false);
  else
    TORCH_CHECK(values.scalar_type() == at::kBFloat16 || weights.has_value(),
                "nsa: adamw_: FP32 values without BF16 weights have FP32 gradients");
  TORCH_CHECK(
      first_moments.scalar_type() == second_moments.scalar_type() &&
          (values.scalar_type() == at::kBFloat16 || first_moments.scalar_type() == at::kFloat),
      "nsa: adamw_: moments of ", first_moments.scalar_type(), " and ",
      second_moments.scalar_type(), " for values of ", values.scalar_type());
  TORCH_CHECK(!weights || (weights->scalar_type() == at::kBFloat16 && weights->numel() == count &&
                           weights->is_contiguous() && weights->device() == values.device() &&
                           is_aligned(weights->data_ptr()) && values.scalar_type() == at::kFloat),
              "nsa: adamw_: weights are BF16 beside FP32 masters");
  TORCH_CHECK(count % kernels::kSlotElements == 0 && decayed.scalar_type() == at::kByte &&
                  decayed.is_contiguous() && decayed.device() == values.device() &&
                  decayed.numel() == count / kernels::kSlotElements,
              "nsa: adamw_: ", count, " values need a mark for each ", kernels::kSlotElements);
  check_scalars({&updates}, "adamw_");
  TORCH_CHECK(control.numel() == kControlWords && control.scalar_type() == at::kFloat &&
                  control.is_contiguous() && control.device() == values.device(),
              "nsa: adamw_: control words are those of update_control_");
  const c10::DeviceGuard guard(values.device());
  kernels::AdamWParams params{};
  params.mode = mode_of(values, first_moments, weights);
  params.count = count;
  params.values = values.data_ptr();
  params.first_moments = first_moments.data_ptr();
  params.second_moments = second_moments.data_ptr();
  if (weights) params.weights = static_cast<__nv_bfloat16*>(weights->data_ptr());
  kernels::GradientPieces pieces;
  if (gradients) {
    params.gradients = gradients->data_ptr<float>();
  } else {
    pieces = pieces_of(piece_gradients, piece_offsets, values.device());
    params.pieces = &pieces;
  }
  params.decayed = decayed.data_ptr<uint8_t>();
  params.updates = updates.data_ptr<float>();
  params.control = static_cast<const kernels::UpdateControl*>(control.data_ptr());
  params.scalars = {learning_rate, beta1, beta2, weight_decay, epsilon, 0.0};
  params.seed = static_cast<uint64_t>(seed);
  params.offset = static_cast<uint64_t>(offset);
  check_cuda(kernels::launch_adamw(params, current_stream()), "adamw_");
}

} // namespace

TORCH_LIBRARY_IMPL(nsa, CUDA, library) {
  library.impl("add_gradients_", &add_gradients_);
  library.impl("square_sum_", &square_sum_);
  library.impl("piece_square_sum_", &piece_square_sum_);
  library.impl("update_control_", &update_control_);
  library.impl("adamw_", &adamw_);
}

} // namespace nsa::ops::on_cuda
