#pragma once
// The operations of an optimizer update on the flat buffers of worker/optimizer/flat_state.h, each
// in one pass over memory. They add gradients of parameters to their FP32 sums, compute the norm,
// and apply AdamW, which also writes the weights. Deterministic: the order of additions is fixed.

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
  bool first = true; // true: overwrites the sums; false: adds to them
  float* sums;
  const __nv_bfloat16* gradient[kGradientsAtOnce]; // 16-byte aligned
  int64_t offset[kGradientsAtOnce];
  int64_t count[kGradientsAtOnce];
};
cudaError_t launch_add_gradients(const AddGradientsParams& params, cudaStream_t stream);

// BF16 gradients that stay where they are, in units of kPieceElements. Piece i holds `count[i]`
// units of the flat buffers from begin[i] on. Units that no piece holds are zero.
inline constexpr int kMostPieces = 512;
inline constexpr int kPieceElements = 4;
struct GradientPieces {
  int pieces = 0;                   // the arrays are zero beyond them
  uint32_t begin[kMostPieces] = {}; // ascending
  uint32_t count[kMostPieces] = {};
  const __nv_bfloat16* gradient[kMostPieces] = {}; // 16-byte aligned
};

// Values that stay on the device: how an update scales its gradients, and whether it happens at
// all.
struct UpdateControl {
  float norm;         // L2 norm of the gradients
  float good;         // 1: norm and loss are finite; 0: the update changes nothing
  float inverse_clip; // factor of the gradients
  float step_size;    // learning rate / (1 - beta1^t)
  float inverse_root; // 1 / sqrt(1 - beta2^t)
  float unused[3];
};

struct UpdateScalars {
  double learning_rate, beta1, beta2, weight_decay, epsilon;
  double clip; // largest norm without clipping; 0: no clipping
};

// Sum of the squares of several ranges of gradients. Each range overwrites (`first`) or adds to the
// partial sums, which are then added into one. Pieces give the same bits as equal values in FP32.
struct SquareSumParams {
  bool first = true;
  int64_t count = 0; // a multiple of kSlotElements
  const float* gradients;
  float* partial;                         // update_partials() floats
  const GradientPieces* pieces = nullptr; // on the host; if set, replaces `gradients`
  int64_t begin = 0;                      // of the range in `pieces`, a multiple of kSlotElements
};
std::size_t update_partials();
cudaError_t launch_partial_squares(const SquareSumParams& params, cudaStream_t stream);
cudaError_t launch_square_sum(const float* partial, float* sum, cudaStream_t stream);

// Computes the control words from the gradients' sum of squares. `updates` becomes t, the number of
// updates including this one, if it is good.
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
  kStochastic, // BF16 weights, rounded stochastically
  kPure        // BF16 weights and moments, gradients rounded to BF16 first
};

// AdamW on elements [0, count). The decay of a slot is scalars.weight_decay if decayed[slot] is not
// 0.
struct AdamWParams {
  UpdateMode mode = UpdateMode::kMaster;
  int64_t count = 0;      // a multiple of kSlotElements
  void* values;           // FP32 masters; BF16 weights in modes without masters
  void* first_moments;    // FP32; BF16 in mode pure
  void* second_moments;   // as first_moments
  __nv_bfloat16* weights; // mode master only
  const float* gradients;
  const uint8_t* decayed; // [count / kSlotElements]
  const float* updates;   // output of launch_update_control
  const UpdateControl* control;
  UpdateScalars scalars;
  // Mode stochastic: for equal seed and element, the bits are those of round_stochastically().
  // `offset` is the number of the first element, which counts for pieces too.
  uint64_t seed = 0, offset = 0;
  // On the host; if set, replaces `gradients` in every mode but kFp32.
  const GradientPieces* pieces = nullptr;
};
cudaError_t launch_adamw(const AdamWParams& params, cudaStream_t stream);

} // namespace nsa::kernels
