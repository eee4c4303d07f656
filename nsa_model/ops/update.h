// Operators on the flat buffers of gradients, masters and moments (worker/optimizer) in a training
// step. Each is one or two kernels in libnsa_ops_cuda.so.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error. No autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace nsa::ops {

// Whether the kernels below exist for tensors of `device`.
bool has_update_kernels(at::Device device);

// Sets sums[offset ..] to each gradient (`first`) or adds it, in FP32. sums is FP32 [elements].
// Gradients are contiguous and of any floating type. Offsets are in elements, multiples of 16. On a
// device without the kernels, each gradient is copied or added separately.
void add_gradients_(const at::Tensor& sums, at::TensorList gradients, at::IntArrayRef offsets,
                    bool first);

// Computes sum = sum of the squares of all elements of `parts`, in FP32. Parts are contiguous,
// flat, FP32, 16-byte aligned, each a multiple of 16 elements. The order of additions is fixed.
void square_sum_(const at::Tensor& sum, at::TensorList parts);

// BF16 gradients that stay where autograd left them. Gradient i is that of the flat buffers'
// elements from offsets[i] on. Offsets ascend and are multiples of 16. Elements without a gradient
// count as zero.
struct GradientPieces {
  std::vector<at::Tensor> gradients;
  std::vector<int64_t> offsets;
};
inline constexpr size_t kMostPieces = 512;
// Whether a gradient can be a piece: BF16, contiguous, 16-byte aligned, a multiple of 4 elements.
bool is_piece(const at::Tensor& gradient);
// Computes sum = sum of the squares of the pieces' elements in these ranges: begin, end, begin, end
// and so on, multiples of 16. The bits are those of square_sum_() with the same ranges. CUDA only.
void piece_square_sum_(const at::Tensor& sum, const GradientPieces& pieces, at::IntArrayRef ranges);

// Coefficients of an update, which the device applies. CUDA only.
struct UpdateRule {
  double learning_rate = 0, beta1 = 0, beta2 = 0, weight_decay = 0, epsilon = 0;
  double clip = 0; // gradients with a larger norm are scaled down to it; 0: never
};
// Computes the control words of adamw_(), FP32 [8], from the gradients' sum of squares and the loss
// (FP32 scalars). The first word is the L2 norm before clipping. It adds 1 to `updates` (FP32
// scalar), unless the norm or the loss is not finite. In that case updates with these words change
// nothing.
at::Tensor update_control_(const at::Tensor& square_sum, const at::Tensor& loss,
                           const at::Tensor& updates, const UpdateRule& rule);

// One AdamW update (Loshchilov, Hutter 2019) of a range of the flat buffers, all [elements]. CUDA
// only.
struct AdamW {
  at::Tensor values; // FP32 masters, or BF16 weights if there are no masters
  // FP32, or BF16 for the predecessor's arithmetic, in which gradients are BF16 too
  at::Tensor first_moments;
  at::Tensor second_moments;         // like first_moments
  std::optional<at::Tensor> weights; // BF16: masters rounded to nearest
  at::Tensor gradients;              // FP32; undefined: `pieces` has them
  // Not if values are FP32 without `weights`. The first value is element `offset` of the pieces.
  GradientPieces pieces = {};
  at::Tensor decayed;          // uint8 [elements / 16]: 1 if weight decay applies
  at::Tensor updates, control; // as update_control_() left them
  // BF16 values with FP32 moments are rounded stochastically, with bits of this seed. `offset` is
  // where the range begins.
  uint64_t seed = 0;
  int64_t offset = 0;
};
void adamw_(const AdamW& state, const UpdateRule& rule);

} // namespace nsa::ops
