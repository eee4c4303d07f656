// The residual sum and its RMSNorm, for rows [columns]:
//   s = round(x + addend);  r = 1 / sqrt(mean(s^2) + epsilon);  normed = s r gain
//   backward, with g = d_normed gain:  d_x = d_sum + r (g - s r mean(g s r))
//                                      d_gain = sum over rows of d_normed s r
//
// Tile (config.h): a warp owns a row and keeps it in registers. Lane l holds its vectors l, l + 32,
// ..., 1 to 4 of them. The forward's warps are independent: no barrier. In the backward a CTA's
// warps process rows in turn and sum d_gain of their rows in registers. sum_gain_kernel adds the
// CTAs' sums: 32 columns a CTA, and each row of threads adds every 32nd sum.
//
//   barrier                           who arrives   what it protects
//   __syncthreads(), once a warp      all threads   the warps add their d_gain to shared memory in
//                                                   warp order
//   __syncthreads(), sum_gain_kernel  all threads   the sums of all rows of threads are written
#include "nsa_model/kernels/rms_norm/rms_norm.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/common/warp_sum.cuh"
#include "nsa_model/kernels/rms_norm/config.h"

namespace nsa::kernels {
namespace {

using rms_norm::Tile;

__device__ __forceinline__ int vector_of(int i) {
  return (i * kWarpThreads + static_cast<int>(threadIdx.x % kWarpThreads)) * kVectorValues;
}

// Place of a column in the backward's sums: [vector of a lane][value of the vector][lane].
__device__ __forceinline__ int place_of(int column) {
  const int vector = column / kVectorValues;
  return (vector / kWarpThreads * kVectorValues + column % kVectorValues) * kWarpThreads +
         vector % kWarpThreads;
}

template <int kPerLane>
__device__ __forceinline__ void load(Eight (&into)[kPerLane], const __nv_bfloat16* row) {
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    into[i] = {};
    accumulate(into[i], row + vector_of(i), 1.0f);
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(Tile::kThreads) add_rms_norm_kernel(AddRmsNormParams params) {
  const int row =
      static_cast<int>(blockIdx.x) * Tile::kWarps + static_cast<int>(threadIdx.x / kWarpThreads);
  if (row >= params.rows) return;
  const int64_t offset = static_cast<int64_t>(row) * params.columns;
  Eight x[kPerLane];
  load(x, params.x + offset);
  if (params.addend != nullptr) {
    Eight addend[kPerLane];
    load(addend, params.addend + offset);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
      // Rounded, because the next kernel reads the rounded sum.
      for (int j = 0; j < kVectorValues; ++j)
        x[i].values[j] =
            __bfloat162float(__float2bfloat16_rn(x[i].values[j] + addend[i].values[j]));
      store(params.sum + offset + vector_of(i), x[i]);
    }
  }
  float squares = 0.0f;
#pragma unroll
  for (const Eight& eight : x) {
#pragma unroll
    for (float value : eight.values)
      squares = fmaf(value, value, squares);
  }
  squares = warp_sum(squares);
  const float inverse = rsqrtf(squares / static_cast<float>(params.columns) + params.epsilon);
  if (threadIdx.x % kWarpThreads == 0) params.inverse[row] = inverse;
  Eight gain[kPerLane];
  load(gain, params.gain);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
    for (int j = 0; j < kVectorValues; ++j)
      x[i].values[j] *= inverse * gain[i].values[j];
    store(params.normed + offset + vector_of(i), x[i]);
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    add_rms_norm_backward_kernel(AddRmsNormBackwardParams params) {
  // [columns], ordered by place_of(), so that the lanes of a warp use different banks
  extern __shared__ float gain_sum[];
  const int warp = static_cast<int>(threadIdx.x / kWarpThreads);
  Eight d_gain[kPerLane] = {};
  for (int row = static_cast<int>(blockIdx.x) * Tile::kWarps + warp; row < params.rows;
       row += Tile::kParts * Tile::kWarps) {
    const int64_t offset = static_cast<int64_t>(row) * params.columns;
    Eight x[kPerLane], d_normed[kPerLane];
    uint4 d_sum[kPerLane], gain[kPerLane];
    load(x, params.sum + offset);
    load(d_normed, params.d_normed + offset);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      d_sum[i] = {};
      if (params.d_sum != nullptr) d_sum[i] = load_vector(params.d_sum + offset + vector_of(i));
      gain[i] = load_vector(params.gain + vector_of(i));
    }
    const float inverse = params.inverse[row];
    float along = 0.0f; // component of the gradient along the normalised row
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      Eight g = {};
      accumulate(g, gain[i], 1.0f);
#pragma unroll
      for (int j = 0; j < kVectorValues; ++j) {
        x[i].values[j] *= inverse;
        d_gain[i].values[j] = fmaf(d_normed[i].values[j], x[i].values[j], d_gain[i].values[j]);
        d_normed[i].values[j] *= g.values[j];
        along = fmaf(d_normed[i].values[j], x[i].values[j], along);
      }
    }
    along = warp_sum(along) / static_cast<float>(params.columns);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      Eight d_x = {};
      accumulate(d_x, d_sum[i], 1.0f);
#pragma unroll
      for (int j = 0; j < kVectorValues; ++j) {
        const float across = fmaf(-along, x[i].values[j], d_normed[i].values[j]);
        d_x.values[j] = fmaf(inverse, across, d_x.values[j]);
      }
      store(params.d_x + offset + vector_of(i), d_x);
    }
  }
  for (int turn = 0; turn < Tile::kWarps; ++turn) { // in warp order
    if (warp == turn) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
        for (int j = 0; j < kVectorValues; ++j) {
          float& sum =
              gain_sum[(i * kVectorValues + j) * kWarpThreads + threadIdx.x % kWarpThreads];
          sum = turn == 0 ? d_gain[i].values[j] : sum + d_gain[i].values[j];
        }
      }
    }
    __syncthreads();
  }
  for (int column = static_cast<int>(threadIdx.x); column < params.columns;
       column += Tile::kThreads)
    params.partial[static_cast<int64_t>(blockIdx.x) * params.columns + column] =
        gain_sum[place_of(column)];
}

__global__ void __launch_bounds__(Tile::kSumColumns* Tile::kSumRows)
    sum_gain_kernel(AddRmsNormBackwardParams params, int parts) {
  __shared__ float of_row[Tile::kSumRows][Tile::kSumColumns];
  const int column =
      static_cast<int>(blockIdx.x) * Tile::kSumColumns + static_cast<int>(threadIdx.x);
  constexpr int kTurns = (Tile::kParts + Tile::kSumRows - 1) / Tile::kSumRows;
  float of_turn[kTurns]; // loaded before the first sum, so that their latencies overlap
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int part = static_cast<int>(threadIdx.y) + turn * Tile::kSumRows;
    of_turn[turn] =
        part < parts ? params.partial[static_cast<int64_t>(part) * params.columns + column] : 0.0f;
  }
  float sum = 0.0f;
#pragma unroll
  for (const float value : of_turn)
    sum += value;
  of_row[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0) return;
  for (int i = 1; i < Tile::kSumRows; ++i)
    sum += of_row[i][threadIdx.x];
  params.d_gain[column] = __float2bfloat16_rn(sum);
}

int parts_of(int rows) {
  const int needed = (rows + Tile::kWarps - 1) / Tile::kWarps;
  return needed < Tile::kParts ? needed : Tile::kParts;
}

template <int kPerLane> void start(const AddRmsNormParams& params, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((params.rows + Tile::kWarps - 1) / Tile::kWarps);
  add_rms_norm_kernel<kPerLane><<<blocks, Tile::kThreads, 0, stream>>>(params);
}
template <int kPerLane> void start(const AddRmsNormBackwardParams& params, cudaStream_t stream) {
  const std::size_t shared = static_cast<std::size_t>(params.columns) * sizeof(float);
  const auto blocks = static_cast<unsigned>(parts_of(params.rows));
  add_rms_norm_backward_kernel<kPerLane><<<blocks, Tile::kThreads, shared, stream>>>(params);
}

template <typename Params> cudaError_t start_for_width(const Params& params, cudaStream_t stream) {
  if (!serves::norm(params.columns)) return cudaErrorInvalidValue;
  switch (params.columns / Tile::kPassColumns) {
  case 1:
    start<1>(params, stream);
    break;
  case 2:
    start<2>(params, stream);
    break;
  case 3:
    start<3>(params, stream);
    break;
  default:
    start<4>(params, stream);
    break;
  }
  return cudaGetLastError();
}

} // namespace

std::size_t rms_norm_partials(int columns) {
  return static_cast<std::size_t>(Tile::kParts) * columns;
}

cudaError_t launch_add_rms_norm(const AddRmsNormParams& params, cudaStream_t stream) {
  if (params.rows == 0) return cudaSuccess;
  return start_for_width(params, stream);
}

cudaError_t launch_add_rms_norm_backward(const AddRmsNormBackwardParams& params,
                                         cudaStream_t stream) {
  if (params.rows == 0)
    return cudaMemsetAsync(params.d_gain, 0, params.columns * sizeof(__nv_bfloat16), stream);
  if (const cudaError_t error = start_for_width(params, stream); error != cudaSuccess) return error;
  const dim3 threads(Tile::kSumColumns, Tile::kSumRows);
  sum_gain_kernel<<<static_cast<unsigned>(params.columns / Tile::kSumColumns), threads, 0,
                    stream>>>(params, parts_of(params.rows));
  return cudaGetLastError();
}

} // namespace nsa::kernels
