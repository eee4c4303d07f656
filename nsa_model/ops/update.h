// What a training step does to flat buffers of gradients, masters and moments (worker/optimizer),
// as operators that are one or two kernels in libnsa_ops_cuda.so.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error. No autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace nsa::ops {

// Whether the kernels below are there for tensors of `device`.
bool has_update_kernels(at::Device device);

// sums[offset ..] of every gradient = it (`first`) or += it, in FP32. sums FP32 [elements], or BF16
// where each has one gradient; gradients contiguous, of any floating type; offsets in elements,
// multiples of 16. On a device without the kernels: a copy or a sum each.
void add_gradients_(const at::Tensor& sums, at::TensorList gradients, at::IntArrayRef offsets,
                    bool first);

// sum = the squares of all elements of `parts`, FP32; parts contiguous, FP32 or BF16, flat, 16-byte
// aligned, each a multiple of 16 elements. In a fixed order, the same for both types.
void square_sum_(const at::Tensor& sum, at::TensorList parts);

// What an update is scaled by, decided on the device. CUDA only.
struct UpdateRule {
  double learning_rate = 0, beta1 = 0, beta2 = 0, weight_decay = 0, epsilon = 0;
  double clip = 0; // norm above which gradients are scaled down to it; 0: never
};
// From the gradients' sum of squares and the loss, FP32 scalars: FP32 [8] for adamw_(), whose first
// is the L2 norm before clipping. `updates`, FP32 scalar, counts one more, unless norm or loss is
// not finite: then updates with these words change nothing.
at::Tensor update_control_(const at::Tensor& square_sum, const at::Tensor& loss,
                           const at::Tensor& updates, const UpdateRule& rule);

// One AdamW update (Loshchilov, Hutter 2019) of a range of the flat buffers, all [elements]. CUDA
// only.
struct AdamW {
  at::Tensor values;         // FP32 masters, or BF16 weights where there are none
  at::Tensor first_moments;  // FP32; BF16 for the predecessor's arithmetic (gradients too, then)
  at::Tensor second_moments; // like first_moments
  std::optional<at::Tensor> weights; // BF16: masters rounded to the nearest
  at::Tensor gradients;              // FP32; or BF16, but where values are FP32 without `weights`
  at::Tensor decayed;                // uint8 [elements / 16]: 1 where weight decay holds
  at::Tensor updates, control;       // as update_control_() left them
  // BF16 values with FP32 moments are rounded at random, with bits of this seed; `offset`: where
  // the range begins.
  uint64_t seed = 0;
  int64_t offset = 0;
};
void adamw_(const AdamW& state, const UpdateRule& rule);

} // namespace nsa::ops
