// What a training step does to flat buffers of gradients, masters and moments (worker/train), as
// operators that are one or two kernels in libnsa_ops_cuda.so.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error. No autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace nsa::ops {

// Whether the kernels below are there for tensors of `device`.
bool has_update_kernels(at::Device device);

// sums[offset ..] of every gradient = it (`first`) or += it, in FP32. sums FP32 [elements];
// gradients contiguous, of any floating type; offsets in elements, multiples of 16. On a device
// without the kernels: a copy or a sum each.
void add_gradients_(const at::Tensor& sums, at::TensorList gradients, at::IntArrayRef offsets,
                    bool first);

// One AdamW update (Loshchilov, Hutter 2019) of flat buffers, all [elements]; where the norm of the
// gradients or the loss is not finite nothing changes. Returns that L2 norm, before clipping, FP32
// scalar. On CUDA only.
struct AdamW {
  at::Tensor values;         // FP32 masters, or BF16 weights where there are none
  at::Tensor first_moments;  // FP32; BF16 for the predecessor's arithmetic (gradients too, then)
  at::Tensor second_moments; // like first_moments
  std::optional<at::Tensor> weights; // BF16: masters rounded to the nearest
  at::Tensor gradients;              // FP32
  at::Tensor decayed;                // uint8 [elements / 16]: 1 where weight decay holds
  at::Tensor updates;                // FP32 scalar: updates so far; one more afterwards
  double beta1 = 0, beta2 = 0, weight_decay = 0, epsilon = 0;
  double clip = 0;   // norm above which gradients are scaled down to it; 0: never
  uint64_t seed = 0; // BF16 values with FP32 moments are rounded at random, with bits of this seed
};
at::Tensor adamw_(const AdamW& state, const at::Tensor& loss, double learning_rate);

} // namespace nsa::ops
