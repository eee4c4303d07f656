#pragma once
// What an optimizer update does to the flat buffers of worker/optimizer/flat_state.h, each in one
// pass over memory: gradients of parameters into their FP32 sums, the norm of these, AdamW with
// what it leaves as weights. Deterministic: sums are taken in a fixed order.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace nsa::kernels {

// Offsets of parameters in the flat buffers are multiples of this (kSlotAlignment).
inline constexpr int kSlotElements = 16;

// sums[offset[i] ..] = or += gradient[i][0 .. count[i]), in FP32.
inline constexpr int kGradientsAtOnce = 64;
struct AddGradientsParams {
  int gradients = 0; // at most kGradientsAtOnce
  bool first = true; // writes; else adds
  float* sums;
  const __nv_bfloat16* gradient[kGradientsAtOnce]; // 16-byte aligned
  int64_t offset[kGradientsAtOnce];
  int64_t count[kGradientsAtOnce];
};
cudaError_t launch_add_gradients(const AddGradientsParams& params, cudaStream_t stream);
// The same for sums that have one gradient each: to[offset[i] ..] = gradient[i], as they are.
// `sums` and `first` are not looked at.
cudaError_t launch_keep_gradients(const AddGradientsParams& params, __nv_bfloat16* to,
                                  cudaStream_t stream);

// What the host never asks for: how an update scales its gradients, and whether it happens at all.
struct UpdateControl {
  float norm;         // L2 norm of the gradients
  float good;         // 1: norm and loss are finite; 0: nothing is changed
  float inverse_clip; // what gradients are multiplied by
  float step_size;    // learning rate / (1 - beta1^t)
  float inverse_root; // 1 / sqrt(1 - beta2^t)
  float unused[3];
};

struct UpdateScalars {
  double learning_rate, beta1, beta2, weight_decay, epsilon;
  double clip; // largest norm that is let through; 0: any
};

// Sum of the squares of several ranges of gradients: each into (`first`) or on to the partial
// sums, then these into one. BF16 gradients give the bits that the same values in FP32 give.
struct SquareSumParams {
  bool first = true;
  int64_t count = 0; // a multiple of kSlotElements
  const float* gradients;
  float* partial;                        // update_partials() floats
  const __nv_bfloat16* narrow = nullptr; // set: instead of `gradients`
};
std::size_t update_partials();
cudaError_t launch_partial_squares(const SquareSumParams& params, cudaStream_t stream);
cudaError_t launch_square_sum(const float* partial, float* sum, cudaStream_t stream);

// The control words that follow from the gradients' sum of squares. `updates` becomes t, the number
// of updates with this one, where it is good.
struct UpdateControlParams {
  const float* square_sum;
  const float* loss;
  float* updates;
  UpdateControl* control;
  UpdateScalars scalars;
};
cudaError_t launch_update_control(const UpdateControlParams& params, cudaStream_t stream);

enum class UpdateMode {
  kMaster,     // FP32 masters, rounded to the nearest into BF16 weights
  kFp32,       // FP32 masters are the weights
  kStochastic, // BF16 weights, rounded at random
  kPure        // BF16 weights and moments, gradients rounded to BF16 first
};

// AdamW on elements [0, count). A slot's decay is scalars.weight_decay where decayed[slot] is not
// 0.
struct AdamWParams {
  UpdateMode mode = UpdateMode::kMaster;
  int64_t count = 0;      // a multiple of kSlotElements
  void* values;           // FP32 masters; BF16 weights in the modes without
  void* first_moments;    // FP32; BF16 in mode pure
  void* second_moments;   // likewise
  __nv_bfloat16* weights; // mode master only
  const float* gradients;
  const uint8_t* decayed; // [count / kSlotElements]
  const float* updates;   // as launch_update_control left it
  const UpdateControl* control;
  UpdateScalars scalars;
  // Mode stochastic: round_stochastically() draws the same bits for the same seed and element; the
  // first one here is `offset`.
  uint64_t seed = 0, offset = 0;
  const __nv_bfloat16* narrow = nullptr; // set: instead of `gradients`, in every mode but kFp32
};
cudaError_t launch_adamw(const AdamWParams& params, cudaStream_t stream);

} // namespace nsa::kernels
