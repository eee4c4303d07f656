#include "nsa_model/kernels/group_gate/group_gate.h"

#include "nsa_model/kernels/common/vector.cuh"

// A warp takes tiles of 16 rows through mma.m16n8k16 (bf16 operands, FP32 sums). With g = lane / 4
// and q = lane % 4 a lane holds of a tile
//   left operand   registers 0, 2: row g, columns 2q, 2q + 1 and 2q + 8, 2q + 9; 1, 3: row g + 8
//   right operand  registers 0, 1: column g, rows 2q, 2q + 1 and 2q + 8, 2q + 9
//   sum            0, 1: row g, columns 2q, 2q + 1; 2, 3: row g + 8.
// Which 16 elements of the sum's dimension a step takes, and in which order, is free as long as
// both operands agree: lane q loads elements 32c + 8q .. + 7 at once, and step 2c + s takes its
// four from 4s on.
//
// In the backward the hidden layer is computed again. What is not exact in bf16 enters products as
// the sum of two bf16. Each warp keeps sums of the weights' gradients in registers over all its
// tiles; the CTAs' sums are added by a second kernel.

namespace nsa::kernels {
namespace {

constexpr int kWidth = kGateWidth, kHidden = kGateHidden, kBranches = kGateBranches;
constexpr int kTile = 16;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kUnits = kHidden / 8; // hidden units, eight at a time: columns of a sum
// CTAs of the backward, each with a partial sum: two for each of an H200's 132 multiprocessors. A
// constant, so that the order of the sums is the same on every GPU.
constexpr int kParts = 264;
constexpr int kWeights = kHidden * kWidth + kBranches * kHidden; // sums of one part
constexpr int kSumRows = 32; // second stage: parts that are summed side by side

static_assert(kWidth == 64 && kHidden == 32 && kBranches == 3 && kWeights % 32 == 0);

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}
__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ float low_of(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float high_of(uint32_t pair) {
  return __uint_as_float(pair & 0xFFFF0000u);
}
// Two values as two bf16 each, whose sums they are to 16 bits.
struct Split {
  uint32_t main, rest;
};
__device__ __forceinline__ Split split(float a, float b) {
  const uint32_t main = pack(a, b);
  return {main, pack(a - low_of(main), b - high_of(main))};
}

__device__ __forceinline__ void multiply(float (&sum)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
               "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// An 8 x 8 matrix whose lane holds row g, columns 2q, 2q + 1: the same of its transpose.
__device__ __forceinline__ uint32_t transposed(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(~0u, value, 1);
  return value + __shfl_xor_sync(~0u, value, 2);
}

// 16 bytes as four pairs: elements 8q .. 8q + 7 of a chunk of 32.
struct Pairs {
  uint32_t pair[4];
};
__device__ __forceinline__ Pairs load_pairs(const __nv_bfloat16* from) {
  const uint4 four = load_packed(from);
  return {{four.x, four.y, four.z, four.w}};
}

struct Lane {
  int g, q;
};
__device__ __forceinline__ Lane lane_of_thread() {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return {lane / 4, lane % 4};
}

// W_c for the hidden layer: [units of eight][chunk of 32 columns].
struct HiddenWeights {
  Pairs of[kUnits][2];
  __device__ __forceinline__ void load(const __nv_bfloat16* fc1, const Lane& lane) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        of[u][c] = load_pairs(fc1 + (8 * u + lane.g) * kWidth + 32 * c + 8 * lane.q);
  }
};
// Rows g and g + 8 of a tile of mean queries: [row][chunk]. Rows past the end are zero.
struct MeanRows {
  Pairs of[2][2];
  __device__ __forceinline__ void load(const __nv_bfloat16* mean, int64_t first, int64_t rows,
                                       const Lane& lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int64_t row = first + lane.g + 8 * r;
        of[r][c] = {};
        if (row < rows) of[r][c] = load_pairs(mean + row * kWidth + 32 * c + 8 * lane.q);
      }
  }
};

// before[u]: the hidden layer before SiLU, of rows g and g + 8 and units 8u + 2q, 8u + 2q + 1.
__device__ __forceinline__ void hidden_layer(float (&before)[kUnits][4], const MeanRows& mean,
                                             const HiddenWeights& weights) {
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
#pragma unroll
    for (float& value : before[u])
      value = 0.0f;
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int s = 0; s < 4; s += 2)
        multiply(before[u], mean.of[0][c].pair[s], mean.of[1][c].pair[s], mean.of[0][c].pair[s + 1],
                 mean.of[1][c].pair[s + 1], weights.of[u][c].pair[s], weights.of[u][c].pair[s + 1]);
  }
}

// W_d of this lane's units: [branch][2 u + {0, 1}].
__device__ __forceinline__ void load_scores(float (&fc2)[kBranches][2 * kUnits],
                                            const __nv_bfloat16* from, const Lane& lane) {
#pragma unroll
  for (int b = 0; b < kBranches; ++b)
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const uint32_t pair =
          *reinterpret_cast<const uint32_t*>(from + b * kHidden + 8 * u + 2 * lane.q);
      fc2[b][2 * u] = low_of(pair);
      fc2[b][2 * u + 1] = high_of(pair);
    }
}

__global__ void __launch_bounds__(kThreads) group_gate_kernel(GroupGateParams params) {
  const Lane lane = lane_of_thread();
  HiddenWeights weights;
  weights.load(params.fc1, lane);
  float fc2[kBranches][2 * kUnits];
  load_scores(fc2, params.fc2, lane);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t first = warp * kTile; first < params.rows; first += warps * kTile) {
    MeanRows mean;
    mean.load(params.mean, first, params.rows, lane);
    float before[kUnits][4];
    hidden_layer(before, mean, weights);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float score[kBranches] = {};
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = before[u][2 * r + i], after = x * sigmoid(x);
#pragma unroll
          for (int b = 0; b < kBranches; ++b)
            score[b] = fmaf(fc2[b][2 * u + i], after, score[b]);
        }
#pragma unroll
      for (float& s : score)
        s = quad_sum(s);
      const float peak = fmaxf(score[0], fmaxf(score[1], score[2]));
      float sum = 0.0f;
#pragma unroll
      for (float& s : score) {
        s = __expf((s - peak) * params.inverse_temperature);
        sum += s;
      }
      const float share = __fdividef(1.0f, sum);
      const int64_t row = first + lane.g + 8 * r;
      if (row >= params.rows) continue;
      float* const gates = params.gates + row * params.heads * kBranches;
      for (int i = lane.q; i < params.heads * kBranches; i += 4) {
        const int b = i % kBranches;
        gates[i] = share * (b == 0 ? score[0] : b == 1 ? score[1] : score[2]);
      }
    }
  }
}

// The scores' gradient of a row, over all heads of its group, in every lane of the quad.
__device__ __forceinline__ void score_gradient(const GroupGateBackwardParams& params, int64_t row,
                                               int q, float (&d_score)[kBranches]) {
  const bool there = row < params.rows;
  const int64_t first = row * params.heads * kBranches;
  float along = 0.0f, gate[kBranches];
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    gate[b] = there ? params.gates[first + b] : 0.0f;
    d_score[b] = 0.0f;
  }
  for (int head = q; there && head < params.heads; head += 4) {
#pragma unroll
    for (int b = 0; b < kBranches; ++b)
      d_score[b] += params.d_gates[first + head * kBranches + b];
  }
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    d_score[b] = quad_sum(d_score[b]);
    along = fmaf(gate[b], d_score[b], along);
  }
#pragma unroll
  for (int b = 0; b < kBranches; ++b)
    d_score[b] = gate[b] * (d_score[b] - along) * params.inverse_temperature;
}

// W_c with its rows along the sum: [step of 16 units][eight columns], rows 2q, 2q + 1 and 2q + 8,
// 2q + 9 of column 8 n + g.
struct MeanWeights {
  uint32_t of[kHidden / 16][kWidth / 8][2];
  __device__ __forceinline__ void load(const __nv_bfloat16* fc1, const Lane& lane) {
    const auto* const bits = reinterpret_cast<const uint16_t*>(fc1);
#pragma unroll
    for (int s = 0; s < kHidden / 16; ++s)
#pragma unroll
      for (int n = 0; n < kWidth / 8; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = 16 * s + 8 * i + 2 * lane.q, column = 8 * n + lane.g;
          of[s][n][i] = static_cast<uint32_t>(bits[row * kWidth + column]) |
                        static_cast<uint32_t>(bits[(row + 1) * kWidth + column]) << 16;
        }
  }
};

__global__ void __launch_bounds__(kThreads, 2)
    group_gate_backward_kernel(GroupGateBackwardParams params) {
  __shared__ float sums[kWeights];
  const Lane lane = lane_of_thread();
  HiddenWeights weights;
  weights.load(params.fc1, lane);
  MeanWeights mean_weights;
  mean_weights.load(params.fc1, lane);
  float d_fc1[kHidden / 16][kWidth / 8][4] = {}; // [16 units][n]: see below
  float d_fc2[kBranches][2 * kUnits] = {};
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kWarps * kTile;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * kTile;
       first < params.rows; first += stride) {
    MeanRows mean;
    mean.load(params.mean, first, params.rows, lane);
    float d_score[2][kBranches];
#pragma unroll
    for (int r = 0; r < 2; ++r)
      score_gradient(params, first + lane.g + 8 * r, lane.q, d_score[r]);
    float d_before[kUnits][4];
    hidden_layer(d_before, mean, weights);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float fc2[kBranches][2];
#pragma unroll
      for (int b = 0; b < kBranches; ++b) {
        const uint32_t pair =
            *reinterpret_cast<const uint32_t*>(params.fc2 + b * kHidden + 8 * u + 2 * lane.q);
        fc2[b][0] = low_of(pair);
        fc2[b][1] = high_of(pair);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float before = d_before[u][2 * r + i], part = sigmoid(before);
          const float after = before * part;
          float up = 0.0f;
#pragma unroll
          for (int b = 0; b < kBranches; ++b) {
            up = fmaf(fc2[b][i], d_score[r][b], up);
            d_fc2[b][2 * u + i] = fmaf(d_score[r][b], after, d_fc2[b][2 * u + i]);
          }
          d_before[u][2 * r + i] = up * part * fmaf(before, 1.0f - part, 1.0f);
        }
    }
    // [u][row]: pairs of units of rows g and g + 8, which are left operands as they are.
    Split d_pair[kUnits][2];
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        d_pair[u][r] = split(d_before[u][2 * r], d_before[u][2 * r + 1]);

#pragma unroll
    for (int n = 0; n < kWidth / 8; ++n) { // d_mean = d_before W_c
      float sum[4] = {};
#pragma unroll
      for (int s = 0; s < kHidden / 16; ++s) {
        const auto& right = mean_weights.of[s][n];
        multiply(sum, d_pair[2 * s][0].main, d_pair[2 * s][1].main, d_pair[2 * s + 1][0].main,
                 d_pair[2 * s + 1][1].main, right[0], right[1]);
        multiply(sum, d_pair[2 * s][0].rest, d_pair[2 * s][1].rest, d_pair[2 * s + 1][0].rest,
                 d_pair[2 * s + 1][1].rest, right[0], right[1]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t row = first + lane.g + 8 * r;
        if (row < params.rows)
          *reinterpret_cast<uint32_t*>(params.d_mean + row * kWidth + 8 * n + 2 * lane.q) =
              pack(sum[2 * r], sum[2 * r + 1]);
      }
    }

    // d_W_c += d_before^T mean, over the tile's rows. Both operands are transposed matrices of
    // eight by eight: of d_before units 8u .. + 7; of the mean, for pair p of chunk c, the columns
    // 32c + 8q + 2p + {0, 1}, so that sum n = 4c + p has lane q's columns at 32c + 8q + 2p.
    Split turned[kUnits][2];
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        turned[u][r] = {transposed(d_pair[u][r].main), transposed(d_pair[u][r].rest)};
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const uint32_t right0 = transposed(mean.of[0][c].pair[p]);
        const uint32_t right1 = transposed(mean.of[1][c].pair[p]);
#pragma unroll
        for (int s = 0; s < kHidden / 16; ++s) {
          float(&sum)[4] = d_fc1[s][4 * c + p];
          multiply(sum, turned[2 * s][0].main, turned[2 * s + 1][0].main, turned[2 * s][1].main,
                   turned[2 * s + 1][1].main, right0, right1);
          multiply(sum, turned[2 * s][0].rest, turned[2 * s + 1][0].rest, turned[2 * s][1].rest,
                   turned[2 * s + 1][1].rest, right0, right1);
        }
      }
  }

  // Rows of W_d: over the eight lanes that hold the same units.
#pragma unroll
  for (int b = 0; b < kBranches; ++b)
#pragma unroll
    for (float& value : d_fc2[b])
      for (int step = 4; step < 32; step *= 2)
        value += __shfl_xor_sync(~0u, value, step);
  for (int turn = 0; turn < kWarps; ++turn) { // in the order of warps
    if (warp == turn) {
      const auto put = [&](int place, float value) {
        sums[place] = turn == 0 ? value : sums[place] + value;
      };
#pragma unroll
      for (int s = 0; s < kHidden / 16; ++s)
#pragma unroll
        for (int n = 0; n < kWidth / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            put((16 * s + lane.g + i / 2 * 8) * kWidth + n / 4 * 32 + lane.q * 8 + n % 4 * 2 +
                    i % 2,
                d_fc1[s][n][i]);
      if (lane.g == 0) {
#pragma unroll
        for (int b = 0; b < kBranches; ++b)
#pragma unroll
          for (int u = 0; u < kUnits; ++u)
#pragma unroll
            for (int i = 0; i < 2; ++i)
              put(kHidden * kWidth + b * kHidden + 8 * u + 2 * lane.q + i, d_fc2[b][2 * u + i]);
      }
    }
    __syncthreads();
  }
  float* const partial = params.partial + static_cast<int64_t>(blockIdx.x) * kWeights;
  for (int i = static_cast<int>(threadIdx.x); i < kWeights; i += kThreads)
    partial[i] = sums[i];
}

__global__ void __launch_bounds__(32 * kSumRows)
    sum_weights_kernel(GroupGateBackwardParams params, int parts) {
  __shared__ float of_row[kSumRows][32];
  const int weight = static_cast<int>(blockIdx.x) * 32 + static_cast<int>(threadIdx.x);
  float sum = 0.0f;
  for (int part = static_cast<int>(threadIdx.y); part < parts; part += kSumRows)
    sum += params.partial[static_cast<int64_t>(part) * kWeights + weight];
  of_row[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0) return;
  for (int i = 1; i < kSumRows; ++i)
    sum += of_row[i][threadIdx.x];
  constexpr int kOfFc1 = kHidden * kWidth;
  __nv_bfloat16* const target =
      weight < kOfFc1 ? params.d_fc1 + weight : params.d_fc2 + (weight - kOfFc1);
  *target = __float2bfloat16_rn(sum);
}

// CTAs for all tiles, but no more than `most`.
int parts_of(int64_t rows, int most) {
  constexpr int64_t kRowsACta = int64_t{kTile} * kWarps;
  const int64_t needed = (rows + kRowsACta - 1) / kRowsACta;
  return static_cast<int>(needed < most ? needed : most);
}

constexpr int kForwardCtas = 1056; // eight for each of an H200's multiprocessors

} // namespace

std::size_t group_gate_partials() {
  return static_cast<std::size_t>(kParts) * kWeights;
}

cudaError_t launch_group_gate(const GroupGateParams& params, cudaStream_t stream) {
  if (params.rows == 0) return cudaSuccess;
  group_gate_kernel<<<static_cast<unsigned>(parts_of(params.rows, kForwardCtas)), kThreads, 0,
                      stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch_group_gate_backward(const GroupGateBackwardParams& params, cudaStream_t stream) {
  const int parts = parts_of(params.rows, kParts);
  if (parts > 0) {
    group_gate_backward_kernel<<<static_cast<unsigned>(parts), kThreads, 0, stream>>>(params);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  sum_weights_kernel<<<kWeights / 32, dim3(32, kSumRows), 0, stream>>>(params, parts);
  return cudaGetLastError();
}

} // namespace nsa::kernels
