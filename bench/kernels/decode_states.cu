// Times a decoding step with the caches in several states. It needs no LibTorch and is built from
// one file:
//
//   nvcc -O3 -std=c++20 --expt-relaxed-constexpr -arch=sm_90a -I. -o decode_states \
//     bench/kernels/decode_states.cu nsa_model/kernels/decode/decode.cu \
//     nsa_model/kernels/decode/check.cpp
//
// cold: after a fill of 1 GiB. code: after a step over other caches. hot: after the same step. The
// figures are in docs/lab/2026-11-23-decode-in-one-launch.md.
#include "nsa_model/kernels/decode/decode.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace {

using namespace nsa::kernels;

constexpr int kGroups = 2, kHeads = 6, kRepeats = 30, kWarmUp = 3;
constexpr std::size_t kFillBytes = std::size_t{1} << 30;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("error: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Random numbers between -1 and 1.
__global__ void draw_kernel(__nv_bfloat16* values, std::size_t count, unsigned seed) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    unsigned bits = static_cast<unsigned>(i) * 2654435761u + seed;
    bits = (bits ^ bits >> 15) * 2246822519u;
    bits = (bits ^ bits >> 13) * 3266489917u;
    values[i] = __float2bfloat16(static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f);
  }
}
__global__ void empty_kernel() {}

// Parameters for sequences of one length. The memory is never freed.
DecodeParams step_of(int batch, int tokens, unsigned seed) {
  const auto take = [](std::size_t bytes) {
    void* begin = nullptr;
    check(cudaMalloc(&begin, std::max<std::size_t>(bytes, 16)));
    return begin;
  };
  const auto draw = [&](std::size_t rows) {
    auto* const values = static_cast<__nv_bfloat16*>(take(rows * kHeadDim * 2));
    draw_kernel<<<1024, 256>>>(values, rows * kHeadDim, seed++);
    return values;
  };
  const auto copy = [&](const auto& values) {
    const std::size_t bytes = values.size() * sizeof(values[0]);
    void* const begin = take(bytes);
    check(cudaMemcpy(begin, values.data(), bytes, cudaMemcpyHostToDevice));
    return begin;
  };
  DecodeParams step;
  step.batch = batch;
  step.groups = kGroups;
  step.heads = kHeads;
  step.gates_of_token = kGroups;
  step.tokens = tokens;
  step.compressed_rows = std::max(1, compressed_count(tokens));
  step.window_rows = kWindow;
  const auto kv_heads = static_cast<std::size_t>(batch * kGroups);
  step.q = draw(kv_heads * kHeads);
  step.k_compressed = draw(kv_heads * static_cast<std::size_t>(step.compressed_rows));
  step.v_compressed = draw(kv_heads * static_cast<std::size_t>(step.compressed_rows));
  step.k_selected = draw(kv_heads * static_cast<std::size_t>(tokens));
  step.v_selected = draw(kv_heads * static_cast<std::size_t>(tokens));
  step.k_window = draw(kv_heads * kWindow);
  step.v_window = draw(kv_heads * kWindow);
  step.gates = static_cast<float*>(copy(std::vector<float>(kv_heads * 3, 0.3f)));
  step.lengths =
      static_cast<int32_t*>(copy(std::vector<int32_t>(static_cast<std::size_t>(batch), tokens)));
  step.out = draw(kv_heads * kHeads);
  step.indices = static_cast<int32_t*>(take(kv_heads * kSlots * sizeof(int32_t)));
  step.plan = plan_decode(batch * kGroups, kHeads, tokens);
  step.workspace =
      take(decode_workspace_bytes(step.plan, static_cast<int>(kv_heads), kHeads, tokens));
  check(cudaDeviceSynchronize());
  return step;
}

// Median microseconds of `run`, each after a fill and `before`.
float time_of(void* filled, const std::function<void()>& before, const std::function<void()>& run) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < kRepeats + kWarmUp; ++i) {
    check(cudaMemsetAsync(filled, i, kFillBytes));
    before();
    check(cudaEventRecord(begin));
    run();
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin, end));
    if (i >= kWarmUp) times.push_back(1000 * milliseconds);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

} // namespace

int main() {
  void* filled = nullptr;
  check(cudaMalloc(&filled, kFillBytes));
  const auto nothing = [] {};
  std::printf("an empty kernel: %.1f us\n",
              time_of(filled, nothing, [] { empty_kernel<<<1, 128>>>(); }));
  std::printf("context batch CTAs     cold     code      hot, us\n");
  constexpr int kSizes[][2] = {{1, 4096}, {1, 131072}, {64, 4096}, {64, 131072}};
  for (const auto& [batch, tokens] : kSizes) {
    const DecodeParams step = step_of(batch, tokens, 1);
    const DecodeParams other = step_of(batch, tokens, 77);
    const auto run = [&] { check(launch_decode(step, nullptr)); };
    const auto run_other = [&] { check(launch_decode(other, nullptr)); };
    std::printf("%7d %5d %4d %8.1f %8.1f %8.1f\n", tokens, batch, step.plan.ctas(),
                time_of(filled, nothing, run), time_of(filled, run_other, run),
                time_of(filled, run, run));
  }
}
