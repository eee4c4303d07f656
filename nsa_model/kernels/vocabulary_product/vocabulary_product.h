#pragma once
// The product of the output layer with softmax cross-entropy in its epilogue. It writes
// exponentials instead of logits, so no other pass over a row of the vocabulary is needed. Hopper
// only. Deterministic, and independent of the GPU's number of multiprocessors.
//
//   c_i   = x_i . weight_label(i)             in FP32
//   E_iv  = exp(x_i . weight_v - c_i)         p_v / p_label, at most 2^100, rounded to BF16; before
//                                             that, its exponent of 2 was rounded to FP16
//   s_i   = 1 + sum over other v of E_iv      in FP32, before E becomes BF16
//   loss_i = row_weight_i log s_i
//
// The gradient of a logit is row_weight_i (E_iv / s_i), and row_weight_i (1 / s_i - 1) at the
// label. So the gradients are products with E, whose value at the label is 0, and a row more for
// each label:
//   d_x_i  = factor_i sum over v of E_iv weight_v + label_factor_i weight_label(i)
//   d_weight_v = sum over i of E_iv (factor_i x_i), and label_factor_i x_i for rows i labelled v

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nsa::kernels {

// Device memory, aligned to 16 bytes. `x` to `row_weight` are read, the others are written.
struct VocabularyProductParams {
  int rows = 0, columns = 0, inner = 0;
  const __nv_bfloat16* x;      // [rows, inner]
  const __nv_bfloat16* weight; // [columns, inner]
  // [rows]. For a label outside [0, columns) the loss is NaN, both factors are 0, and c is 0.
  const int64_t* labels;
  const float* row_weight;     // [rows], weight of each row in the loss
  float* workspace;            // vocabulary_product_workspace() floats
  __nv_bfloat16* exponentials; // [rows, columns], E with 0 at the label
  float* loss;                 // [rows]
  float* factor;               // [rows] = row_weight / s
  float* label_factor;         // [rows] = row_weight (1 / s - 1)
  __nv_bfloat16* scaled;       // [rows, inner] = factor x
};
std::size_t vocabulary_product_workspace(int rows, int columns);
// Unless serves::vocabulary_product() supports the sizes, the launches return
// cudaErrorInvalidValue.
cudaError_t launch_vocabulary_product(const VocabularyProductParams& params, cudaStream_t stream);

// d_x = factor product + label_factor weight_label, where `product` is E weight.
struct HiddenGradientParams {
  int rows = 0, columns = 0, inner = 0;
  const float* product;        // [rows, inner]
  const float* factor;         // [rows]
  const float* label_factor;   // [rows]
  const int64_t* labels;       // [rows]
  const __nv_bfloat16* weight; // [columns, inner]
  __nv_bfloat16* d_x;          // [rows, inner]
};
cudaError_t launch_hidden_gradient(const HiddenGradientParams& params, cudaStream_t stream);

} // namespace nsa::kernels
