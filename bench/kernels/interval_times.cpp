#include "bench/kernels/interval_times.h"

#include <algorithm>
#include <cstdio>

#include "bench/kernel_cases/attention_case.h"
#include "bench/kernel_cases/causal_case.h"
#include "bench/kernels/timing.h"
#include "nsa_model/kernels/block_backward/block_backward.h"
#include "nsa_model/kernels/combine/combine.h"
#include "nsa_model/kernels/common/key_range.cuh"
#include "nsa_model/kernels/compressed_backward/compressed_backward.h"
#include "nsa_model/kernels/tile_backward/tile_backward.h"
#include "nsa_model/kernels/tile_forward/tile_forward.h"

namespace nsa::kernels::check {
namespace {

struct Interval {
  const char* name;
  KeyRange range;
  int window;
  int token_end;
};

// Number of (token, key) pairs in which the token sees the key, in one sequence and group.
double pairs(const Interval& interval) {
  double sum = 0.0;
  for (int token = 0; token < interval.token_end; ++token) {
    sum += interval.range == KeyRange::kCompressed ? visible_compressed(token)
                                                   : std::min(token + 1, interval.window);
  }
  return sum;
}

// Prints the times of the forward, of dQ, of dK with dV, and of their sum.
void print(const Interval& interval, const AttentionShape& shape, const Timing (&times)[4],
           std::size_t tiles) {
  const double product =
      2.0 * kHeadDim * pairs(interval) * shape.batch * shape.groups * shape.heads;
  const double products[] = {2.0, 3.0, 4.0};
  std::printf("%6d %-19s", shape.sequence, interval.name);
  const char* names[] = {"forward", "dQ", "dK dV"};
  for (int i = 0; i < 3; ++i) {
    std::printf(" | %s %6.1f us (%3.0f)", names[i], 1e3 * times[i].median,
                1e-9 * product * products[i] / times[i].median);
  }
  std::printf(" | sum %5.1f us, %zu tiles\n", 1e3 * times[3].median, tiles);
  std::fflush(stdout);
}

constexpr int kRepeats = 10;

// Prints the time of dQ, dK and dV of the compressed branch in one kernel, with the sums of all
// launches.
void time_compressed_backward(AttentionCase& c, const BlockBackwardTensors& tensors,
                              float* statistics, __nv_bfloat16* d_q, double product) {
  const AttentionShape& shape = c.options.shape;
  if (!serves_compressed_backward(shape)) return;
  const int keys = compressed_count(shape.sequence);
  const int launches = compressed_backward_launches(shape);
  DeviceBuffer<float2> bounds(static_cast<std::size_t>(shape.batch * shape.groups * keys));
  DeviceBuffer<int32_t> sums(static_cast<std::size_t>(compressed_backward_sums(shape)));
  DeviceBuffer<float> partial(static_cast<std::size_t>(compressed_backward_tiles(shape)) * 2 *
                              kBlock * kHeadDim);
  DeviceBuffer<float> d_k(c.cmp_count), d_v(c.cmp_count);
  const auto launch_all = [&](bool reduces) {
    for (int launch = 0; launch < launches; ++launch) {
      cuda_check(launch_compressed_backward({.shape = shape,
                                             .launch = launch,
                                             .tensors = tensors,
                                             .statistics = statistics,
                                             .key_bounds = bounds.get(),
                                             .query_sums = sums.get(),
                                             .partial_dkv = partial.get(),
                                             .adds = true,
                                             .d_q = d_q},
                                            nullptr),
                 "compressed backward");
      if (!reduces) continue;
      cuda_check(launch_reduce_key_gradient({.shape = shape,
                                             .keys = keys,
                                             .range_partial = partial.get(),
                                             .range = KeyRange::kCompressed,
                                             .token_end = shape.sequence,
                                             .bands = compressed_backward_bands(shape, launch),
                                             .d_k = nullptr,
                                             .d_v = nullptr,
                                             .d_k_fp32 = d_k.get(),
                                             .d_v_fp32 = d_v.get(),
                                             .adds = launch > 0},
                                            nullptr),
                 "sum blocks");
    }
  };
  const Timing kernel = time_of([&] { launch_all(false); }, kRepeats);
  const Timing whole = time_of([&] { launch_all(true); }, kRepeats);
  std::printf(
      "%6d compressed in one   | dQ dK dV %6.1f us (%3.0f), %d launches | with sums %6.1f us\n",
      shape.sequence, 1e3 * kernel.median, 1e-9 * product * 5.0 / kernel.median, launches,
      1e3 * whole.median);
  std::fflush(stdout);
}

// Prints one line with the time of each kernel of one interval.
void time_interval(const Interval& interval, AttentionCase& c, DeviceBuffer<float>& statistics,
                   DeviceBuffer<__nv_bfloat16>& d_q) {
  const AttentionShape& shape = c.options.shape;
  const int sequence = shape.sequence;
  const bool is_compressed = interval.range == KeyRange::kCompressed;
  const int keys = is_compressed ? compressed_count(sequence) : sequence;
  const __nv_bfloat16* k = is_compressed ? c.k_cmp.get() : c.k[2].get();
  const __nv_bfloat16* v = is_compressed ? c.v_cmp.get() : c.v[2].get();
  const auto forward = [&] {
    cuda_check(launch_tile_forward({.shape = shape,
                                    .range = interval.range,
                                    .window = interval.window,
                                    .token_end = interval.token_end,
                                    .q = c.q.get(),
                                    .k = k,
                                    .v = v,
                                    .out = c.branch_out[2].get(),
                                    .lse = c.branch_lse[2].get()},
                                   nullptr),
               "tile forward");
  };
  forward();
  BackwardPrepareParams prepare = {
      .shape = shape, .d_out = c.d_out.get(), .gates = c.gates.get(), .d_gates = nullptr};
  prepare.branch_out[2] = c.branch_out[2].get();
  prepare.branch_lse[2] = c.branch_lse[2].get();
  prepare.statistics[2] = statistics.get();
  cuda_check(launch_backward_prepare(prepare, nullptr), "prepare");
  const BlockBackwardTensors tensors = {
      .q = c.q.get(), .k = k, .v = v, .d_out = c.d_out.get(), .statistics = statistics.get()};
  const auto tiles = static_cast<std::size_t>(
      range_backward_tiles(shape, interval.range, interval.window, interval.token_end));
  DeviceBuffer<float> partial(std::max<std::size_t>(tiles, 1) * 2 * kBlock * kHeadDim);
  const Timing times[] = {
      time_of(forward, kRepeats),
      time_of(
          [&] {
            cuda_check(launch_tile_backward({.shape = shape,
                                             .range = interval.range,
                                             .window = interval.window,
                                             .token_end = interval.token_end,
                                             .tensors = tensors,
                                             .d_q = d_q.get()},
                                            nullptr),
                       "tile backward");
          },
          kRepeats),
      time_of(
          [&] {
            cuda_check(launch_range_backward({.shape = shape,
                                              .range = interval.range,
                                              .window = interval.window,
                                              .token_end = interval.token_end,
                                              .tensors = tensors,
                                              .partial_dkv = partial.get()},
                                             nullptr),
                       "range backward");
          },
          kRepeats),
      time_of(
          [&] {
            cuda_check(launch_reduce_key_gradient({.shape = shape,
                                                   .keys = keys,
                                                   .range_partial = partial.get(),
                                                   .range = interval.range,
                                                   .window = interval.window,
                                                   .token_end = interval.token_end,
                                                   .d_k = c.d_k[2].get(),
                                                   .d_v = c.d_v[2].get()},
                                                  nullptr),
                       "sum blocks");
          },
          kRepeats),
  };
  print(interval, shape, times, tiles);
  if (is_compressed)
    time_compressed_backward(c, tensors, statistics.get(), d_q.get(),
                             2.0 * kHeadDim * pairs(interval) * shape.batch * shape.groups *
                                 shape.heads);
}

} // namespace

void time_interval_kernels(int sequence, int heads) {
  CaseOptions options;
  const int tokens = std::max(32768, sequence);
  options.shape = {tokens / sequence, sequence, 2, heads};
  const AttentionShape& shape = options.shape;
  AttentionCase c(options);
  c.forward(); // computes the compressed keys
  const int first_tokens = query_major_tokens(shape, {});
  const Interval intervals[] = {
      {"window 512", KeyRange::kWindow, kWindow, sequence},
      {"causal", KeyRange::kWindow, 2 * kMaxSequence, sequence},
      {"compressed", KeyRange::kCompressed, kWindow, sequence},
      {"causal first tokens", KeyRange::kWindow, 2 * kMaxSequence, first_tokens},
      {"window 64", KeyRange::kWindow, 64, sequence},
      {"window 2048", KeyRange::kWindow, 2048, sequence},
  };
  DeviceBuffer<float> statistics((static_cast<std::size_t>(tokens) * shape.groups + 1) * 2 *
                                 head_floats(heads));
  DeviceBuffer<__nv_bfloat16> d_q(c.rows * kHeadDim);
  for (const Interval& interval : intervals) {
    time_interval(interval, c, statistics, d_q);
  }
  CausalCase causal(options);
  const Timing forward = time_of([&] { causal.forward(); }, kRepeats);
  const Timing backward = time_of([&] { causal.backward(); }, kRepeats);
  std::printf("%6d causal, whole | forward %6.1f us | backward %6.1f us | both %6.1f us\n",
              sequence, 1e3 * forward.median, 1e3 * backward.median,
              1e3 * (forward.median + backward.median));
  std::fflush(stdout);
}

} // namespace nsa::kernels::check
