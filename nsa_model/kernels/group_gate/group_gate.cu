// The gate of a group, forward and backward.
//
//   h = W_c m, s = W_d silu(h), g = softmax(s / temperature); m the mean query of a (token, group)
//   backward: ds = g (dg - <g, dg>) / temperature, dg summed over the group's heads,
//   dh = silu'(h) W_d^T ds, dm = dh W_c, dW_c = dh^T m, dW_d = ds^T silu(h)
//
// Tile (config.h): 16 rows a warp, by mma.m16n8k16 (products.cuh lists what a lane holds).
//   h          16 x 32, contraction over the mean's 64 elements; W_c stays in registers
//   s          a row's 32 units are in the four lanes of a quad
//   dm         16 x 64, contraction over the 32 units
//   dW_c       32 x 64, contraction over the tile's 16 rows, both operands transposed in registers
//
// The backward computes the hidden layer again. Values that are not exact in bf16 enter products as
// the sum of two bf16 (Split). Each warp keeps sums of the weights' gradients in registers over all
// its tiles. A second kernel adds the sums of the CTAs in a fixed order.
//
// All warps do the same work, each on its own tiles.
//   barrier                                who arrives   what it protects
//   __syncthreads() at the backward's end  all threads   the sums of all warps are written
//   __syncthreads() in the second kernel   all threads   the partial sums are written

#include "nsa_model/kernels/group_gate/group_gate.h"

#include "nsa_model/kernels/group_gate/backward.cuh"
#include "nsa_model/kernels/group_gate/products.cuh"

namespace nsa::kernels {
namespace group_gate {
namespace {

__global__ void __launch_bounds__(Tile::kThreads) group_gate_kernel(GroupGateParams params) {
  const Lane lane = lane_of_thread();
  HiddenWeights weights;
  weights.load(params.fc1, lane);
  float fc2[kBranches][2 * kUnits];
  load_scores(fc2, params.fc2, lane);
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * Tile::kWarps + threadIdx.x / kWarpThreads;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * Tile::kWarps;
  for (int64_t first = warp * Tile::kRows; first < params.rows; first += warps * Tile::kRows) {
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
        s = sum_of_quad(s);
      const float peak = fmaxf(score[0], fmaxf(score[1], score[2]));
      float sum = 0.0f;
#pragma unroll
      for (float& s : score) {
        s = __expf((s - peak) * params.inverse_temperature);
        sum += s;
      }
      const float share = __fdividef(1.0f, sum);
      const int64_t row = first + lane.g + kRowsApart * r;
      if (row >= params.rows) continue;
      float* const gates = params.gates + row * params.heads * kBranches;
      for (int i = lane.q; i < params.heads * kBranches; i += 4) {
        const int b = i % kBranches;
        gates[i] = share * (b == 0 ? score[0] : b == 1 ? score[1] : score[2]);
      }
    }
  }
}

__global__ void __launch_bounds__(Tile::kThreads, 2)
    group_gate_backward_kernel(GroupGateBackwardParams params) {
  __shared__ float sums[Tile::kWarps][kWeights];
  const Lane lane = lane_of_thread();
  HiddenWeights weights;
  weights.load(params.fc1, lane);
  MeanWeights mean_weights;
  mean_weights.turn(weights);
  float d_fc1[kHiddenSteps][kWidthGroups][4] = {}; // [16 units][n]: see below
  float d_fc2[kBranches][2 * kUnits] = {};
  const int warp = static_cast<int>(threadIdx.x / kWarpThreads);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * Tile::kWarps * Tile::kRows;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * Tile::kWarps + warp) * Tile::kRows;
       first < params.rows; first += stride) {
    MeanRows mean;
    mean.load(params.mean, first, params.rows, lane);
    float d_score[2][kBranches];
    score_gradient(params, first, lane, d_score);
    float d_before[kUnits][4];
    hidden_layer(d_before, mean, weights);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float fc2[kBranches][2];
      load_unit(fc2, params.fc2, u, lane);
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
    UnitPairs d_pair;
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        d_pair[u][r] = split(d_before[u][2 * r], d_before[u][2 * r + 1]);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) { // d_mean = d_before W_c
      uint32_t pairs[2][kPairs];        // columns 32c + 8q .. 32c + 8q + 7 of rows g and g + 8
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        float sum[4] = {};
#pragma unroll
        for (int s = 0; s < kHiddenSteps; ++s) {
          const auto& right = mean_weights.of[s][kPairs * c + p];
          multiply_split(sum, d_pair[2 * s][0], d_pair[2 * s][1], d_pair[2 * s + 1][0],
                         d_pair[2 * s + 1][1], right[0], right[1]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r)
          pairs[r][p] = pack(sum[2 * r], sum[2 * r + 1]);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t row = first + lane.g + kRowsApart * r;
        if (row < params.rows)
          store_vector(params.d_mean + row * kWidth + kChunk * c + kVectorValues * lane.q,
                       {pairs[r][0], pairs[r][1], pairs[r][2], pairs[r][3]});
      }
    }
    // d_W_c += d_before^T mean, over the tile's rows. Both operands are transposed matrices of
    // eight by eight. Those of d_before have units 8u .. 8u + 7. Those of the mean, for pair p of
    // chunk c, have columns 32c + 8q + 2p + {0, 1}. So sum n = 4c + p has lane q's columns at 32c +
    // 8q + 2p.
    UnitPairs turned;
    transpose(turned, d_pair);
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        const uint32_t right0 = transposed(mean.of[0][c].pair[p]);
        const uint32_t right1 = transposed(mean.of[1][c].pair[p]);
#pragma unroll
        for (int s = 0; s < kHiddenSteps; ++s) {
          float(&sum)[4] = d_fc1[s][kPairs * c + p];
          multiply_split(sum, turned[2 * s][0], turned[2 * s + 1][0], turned[2 * s][1],
                         turned[2 * s + 1][1], right0, right1);
        }
      }
  }
  sum_over_rows(d_fc2);
#pragma unroll
  for (int s = 0; s < kHiddenSteps; ++s)
#pragma unroll
    for (int n = 0; n < kWidthGroups; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[warp][((s * kWidthGroups + n) * 4 + i) * kWarpThreads + 4 * lane.g + lane.q] =
            d_fc1[s][n][i];
  if (lane.g == 0) {
#pragma unroll
    for (int b = 0; b < kBranches; ++b)
#pragma unroll
      for (int u = 0; u < kUnits; ++u)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          sums[warp][kHidden * kWidth + b * kHidden + kGroup * u + 2 * lane.q + i] =
              d_fc2[b][2 * u + i];
  }
  __syncthreads();
  float* const partial = params.partial + static_cast<int64_t>(blockIdx.x) * kWeights;
  for (int i = static_cast<int>(threadIdx.x); i < kWeights; i += Tile::kThreads) {
    float sum = sums[0][i];
#pragma unroll
    for (int other = 1; other < Tile::kWarps; ++other) // in warp order
      sum += sums[other][i];
    partial[i] = sum;
  }
}

// The weight of W_c whose sum has this place: [step][group of columns][value][lane]. So the lanes
// of a warp use different banks.
__device__ __forceinline__ int fc1_of_place(int place) {
  const int q = place % 4, g = place / 4 % kMatrixRows, i = place / kWarpThreads % 4;
  const int n = place / kWarpThreads / 4 % kWidthGroups;
  const int s = place / kWarpThreads / 4 / kWidthGroups;
  return (kDepth * s + g + i / 2 * kRowsApart) * kWidth + n / kPairs * kChunk + q * kVectorValues +
         n % kPairs * 2 + i % 2;
}

__global__ void __launch_bounds__(kWarpThreads* Tile::kSumRows)
    sum_weights_kernel(GroupGateBackwardParams params, int parts) {
  __shared__ float of_row[Tile::kSumRows][kWarpThreads];
  const int weight = static_cast<int>(blockIdx.x) * kWarpThreads + static_cast<int>(threadIdx.x);
  float sum = 0.0f;
  for (int part = static_cast<int>(threadIdx.y); part < parts; part += Tile::kSumRows)
    sum += params.partial[static_cast<int64_t>(part) * kWeights + weight];
  of_row[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0) return;
  for (int i = 1; i < Tile::kSumRows; ++i)
    sum += of_row[i][threadIdx.x];
  constexpr int kOfFc1 = kHidden * kWidth;
  __nv_bfloat16* const target =
      weight < kOfFc1 ? params.d_fc1 + fc1_of_place(weight) : params.d_fc2 + (weight - kOfFc1);
  *target = __float2bfloat16_rn(sum);
}

// Number of CTAs for all tiles, at most `most`.
int parts_of(int64_t rows, int most) {
  constexpr int64_t kRowsACta = int64_t{Tile::kRows} * Tile::kWarps;
  const int64_t needed = (rows + kRowsACta - 1) / kRowsACta;
  return static_cast<int>(needed < most ? needed : most);
}

} // namespace
} // namespace group_gate

std::size_t group_gate_partials() {
  using namespace group_gate;
  return static_cast<std::size_t>(Tile::kBackwardCtas) * kWeights;
}

cudaError_t launch_group_gate(const GroupGateParams& params, cudaStream_t stream) {
  using namespace group_gate;
  if (params.rows == 0) return cudaSuccess;
  group_gate_kernel<<<static_cast<unsigned>(parts_of(params.rows, Tile::kForwardCtas)),
                      Tile::kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t launch_group_gate_backward(const GroupGateBackwardParams& params, cudaStream_t stream) {
  using namespace group_gate;
  const int parts = parts_of(params.rows, Tile::kBackwardCtas);
  if (parts > 0) {
    group_gate_backward_kernel<<<static_cast<unsigned>(parts), Tile::kThreads, 0, stream>>>(params);
    if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess) return error;
  }
  sum_weights_kernel<<<kWeights / kWarpThreads, dim3(kWarpThreads, Tile::kSumRows), 0, stream>>>(
      params, parts);
  return cudaGetLastError();
}

} // namespace nsa::kernels
