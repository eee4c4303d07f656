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
//   cp.async groups                   each thread   its vectors of the next row have arrived
//   __syncwarp() in the backward      all lanes     the row has been read from shared memory
//   __syncthreads() in the backward   all threads   the d_gain of all warps are written
//   __syncthreads(), sum_gain_kernel  all threads   the sums of all rows of threads are written
#include "nsa_model/kernels/rms_norm/rms_norm.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/kernels/common/mma.cuh"
#include "nsa_model/kernels/common/vector.cuh"
#include "nsa_model/kernels/common/warp_sum.cuh"
#include "nsa_model/kernels/rms_norm/config.h"

namespace nsa::kernels {
namespace {

using rms_norm::Tile;

__device__ __forceinline__ int vector_of(int i) {
  return (i * kWarpThreads + static_cast<int>(threadIdx.x % kWarpThreads)) * kVectorValues;
}

// The column whose sum of the backward has this place: [vector of a lane][value of the
// vector][lane]. So the lanes of a warp use different banks.
__device__ __forceinline__ int column_of(int place) {
  const int lane = place % kWarpThreads, value = place / kWarpThreads;
  return (value / kVectorValues * kWarpThreads + lane) * kVectorValues + value % kVectorValues;
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

// What a lane reads of a row in the backward.
template <int kPerLane> struct BackwardRow {
  static constexpr int kColumns = kPerLane * Tile::kPassColumns;
  uint4 x[kPerLane], d_normed[kPerLane], d_sum[kPerLane];

  __device__ __forceinline__ void load(const AddRmsNormBackwardParams& params, int row) {
    const int64_t offset = static_cast<int64_t>(row) * kColumns;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      x[i] = load_vector(params.sum + offset + vector_of(i));
      d_normed[i] = load_vector(params.d_normed + offset + vector_of(i));
      d_sum[i] = {};
      if (params.d_sum != nullptr) d_sum[i] = load_vector(params.d_sum + offset + vector_of(i));
    }
  }
  // Begins to copy a row to shared memory, or zeros if it is not `valid`. It does not branch, so
  // that the compiler leaves it before the arithmetic that follows.
  static __device__ __forceinline__ void
  copy(__nv_bfloat16* to, const AddRmsNormBackwardParams& params, int row, bool valid) {
    const int64_t offset = static_cast<int64_t>(row) * kColumns + vector_of(0);
    const bool adds = params.d_sum != nullptr;
    const __nv_bfloat16* const from[] = {params.sum + offset, params.d_normed + offset,
                                         (adds ? params.d_sum : params.sum) + offset};
    const uint32_t target = shared_address(to + vector_of(0));
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
#pragma unroll
      for (int part = 0; part < 3; ++part)
        copy_chunk(target + (part * kColumns + i * Tile::kPassColumns) * sizeof(__nv_bfloat16),
                   from[part] + i * Tile::kPassColumns, valid && (part < 2 || adds));
    commit_copies();
  }
  __device__ __forceinline__ void read(const __nv_bfloat16* copied) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      x[i] = load_vector(copied + vector_of(i));
      d_normed[i] = load_vector(copied + kColumns + vector_of(i));
      d_sum[i] = load_vector(copied + 2 * kColumns + vector_of(i));
    }
  }
};

template <int kPerLane>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    add_rms_norm_backward_kernel(AddRmsNormBackwardParams params) {
  using Row = BackwardRow<kPerLane>;
  // [warp][3][columns]: a warp's next row, at the end its d_gain in FP32 [place]
  extern __shared__ __align__(16) __nv_bfloat16 rows_shared[];
  const int warp = static_cast<int>(threadIdx.x / kWarpThreads);
  __nv_bfloat16* const copied = rows_shared + warp * 3 * Row::kColumns;
  Eight d_gain[kPerLane] = {};
  int row = static_cast<int>(blockIdx.x) * Tile::kWarps + warp;
  Row now;
  float inverse = 0.0f;
  if (row < params.rows) {
    now.load(params, row);
    inverse = params.inverse[row];
  }
  while (row < params.rows) {
    // The next row arrives while this one is computed.
    const int next = row + Tile::kParts * Tile::kWarps;
    const bool goes_on = next < params.rows;
    Row::copy(copied, params, goes_on ? next : row, goes_on);
    const float next_inverse = params.inverse[goes_on ? next : row];
    Eight x[kPerLane], d_normed[kPerLane];
    float along = 0.0f; // component of the gradient along the normalised row
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      x[i] = unpack(now.x[i]);
      d_normed[i] = unpack(now.d_normed[i]);
      const Eight g = unpack(load_vector(params.gain + vector_of(i)));
#pragma unroll
      for (int j = 0; j < kVectorValues; ++j) {
        x[i].values[j] *= inverse;
        d_gain[i].values[j] = fmaf(d_normed[i].values[j], x[i].values[j], d_gain[i].values[j]);
        d_normed[i].values[j] *= g.values[j];
        along = fmaf(d_normed[i].values[j], x[i].values[j], along);
      }
    }
    along = warp_sum(along) / static_cast<float>(params.columns);
    const int64_t offset = static_cast<int64_t>(row) * params.columns;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      Eight d_x = unpack(now.d_sum[i]);
#pragma unroll
      for (int j = 0; j < kVectorValues; ++j) {
        const float across = fmaf(-along, x[i].values[j], d_normed[i].values[j]);
        d_x.values[j] = fmaf(inverse, across, d_x.values[j]);
      }
      store(params.d_x + offset + vector_of(i), d_x);
    }
    row = next;
    wait_for_copies<0>(); // also the last row's zeros: d_gain is written in their place
    if (!goes_on) break;
    now.read(copied);
    inverse = next_inverse;
    __syncwarp(); // the row has been read before the copies of the next one begin
  }
  __syncwarp(); // every lane's copies have ended
  const auto sums_of = [&](int of) {
    return reinterpret_cast<float*>(rows_shared + of * 3 * Row::kColumns);
  };
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
    for (int j = 0; j < kVectorValues; ++j)
      sums_of(warp)[(i * kVectorValues + j) * kWarpThreads + threadIdx.x % kWarpThreads] =
          d_gain[i].values[j];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int place = i * Tile::kThreads + static_cast<int>(threadIdx.x);
    float sum = sums_of(0)[place];
#pragma unroll
    for (int other = 1; other < Tile::kWarps; ++other) // in warp order
      sum += sums_of(other)[place];
    params.partial[static_cast<int64_t>(blockIdx.x) * params.columns + place] = sum;
  }
}

__global__ void __launch_bounds__(Tile::kSumColumns* Tile::kSumRows)
    sum_gain_kernel(AddRmsNormBackwardParams params, int parts) {
  __shared__ float of_row[Tile::kSumRows][Tile::kSumColumns];
  const int place =
      static_cast<int>(blockIdx.x) * Tile::kSumColumns + static_cast<int>(threadIdx.x);
  constexpr int kTurns = (Tile::kParts + Tile::kSumRows - 1) / Tile::kSumRows;
  float of_turn[kTurns]; // loaded before the first sum, so that their latencies overlap
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int part = static_cast<int>(threadIdx.y) + turn * Tile::kSumRows;
    of_turn[turn] =
        part < parts ? params.partial[static_cast<int64_t>(part) * params.columns + place] : 0.0f;
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
  params.d_gain[column_of(place)] = __float2bfloat16_rn(sum);
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
  const std::size_t shared =
      static_cast<std::size_t>(params.columns) * Tile::kWarps * 3 * sizeof(__nv_bfloat16);
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
