// nsa-bench decode: times attention of one token a sequence over caches, and dense attention in the
// same process. The caches are not in L2 when a step begins (bench/gpu_times/gpu_times.h).
//
// "read" counts the keys and values that the paper counts. "bound" is their time at the speed of a
// copy on this GPU, and "of bound" is the ratio of a step's time to it. Steps of a small batch are
// limited by launches, not by memory.
#include "bench/decode/options.h"
#include "bench/gpu_times/gpu_times.h"
#include "common/base/build_info.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "nsa_model/ops/decode.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <cstdio>
#include <optional>

namespace {

using namespace nsa;
using at::Tensor;
using bench::Times;
using nlohmann::ordered_json;

constexpr int64_t kHeadDimension = 64;

[[noreturn]] void die(const std::string& why) {
  std::fprintf(stderr, "error: %s\n", why.c_str());
  std::exit(1);
}

struct Backend {
  const char* name;
  bool flash, cudnn, efficient;
};
constexpr Backend kBackends[] = {{"flash", true, false, false},
                                 {"cudnn", false, true, false},
                                 {"efficient", false, false, true}};

struct Dense {
  std::string backend;
  Times times;
};

struct Row {
  int64_t context, batch;
  double bytes, bound_us;
  Times nsa;
  std::vector<Dense> dense; // one for each backend that supports the problem, the fastest first
};

ops::DecodeInputs caches(const bench::DecodeOptions& o, int64_t context, int64_t batch) {
  const auto cuda = at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16);
  const ops::Sizes sizes;
  ops::DecodeInputs in;
  in.q = at::randn({batch, 1, o.groups * o.heads, kHeadDimension}, cuda);
  in.gates = at::rand({batch, 1, o.groups, 3}, cuda.dtype(at::kFloat));
  in.lengths = at::full({batch}, context, cuda.dtype(at::kInt));
  const int64_t rows[] = {std::max<int64_t>(1, reference::compressed_count(context, sizes)),
                          context, sizes.window};
  for (std::size_t branch = 0; branch < 3; ++branch)
    for (auto* side : {&in.k, &in.v})
      (*side)[branch] = at::randn({batch, o.groups, rows[branch], kHeadDimension}, cuda);
  return in;
}

// Times each backend on all keys of the selected branch's cache.
std::vector<Dense> measure_dense(const bench::DecodeOptions& o, const bench::Timer& timer,
                                 const ops::DecodeInputs& in) {
  const Tensor q = in.q.transpose(1, 2).contiguous();
  const Tensor &k = *in.k[1], &v = *in.v[1];
  std::vector<Dense> all;
  auto& context = at::globalContext();
  context.setSDPUseMath(false);
  for (const Backend& backend : kBackends) {
    context.setSDPUseFlash(backend.flash);
    context.setSDPUseCuDNN(backend.cudnn);
    context.setSDPUseMemEfficient(backend.efficient);
    try {
      all.push_back({backend.name, timer.time(
                                       [&] {
                                         at::scaled_dot_product_attention(
                                             q, k, v, {}, 0.0, /*is_causal=*/false, std::nullopt,
                                             /*enable_gqa=*/true);
                                       },
                                       o.repeats, o.row_seconds)});
    } catch (const c10::Error&) {
      continue; // the backend does not support this
    }
  }
  std::sort(all.begin(), all.end(),
            [](const Dense& a, const Dense& b) { return a.times.median < b.times.median; });
  return all;
}

void print_json(const Row& row) {
  const auto times = [](const Times& t) {
    return ordered_json{{"median", 1e3 * t.median},
                        {"p10", 1e3 * t.low},
                        {"p90", 1e3 * t.high},
                        {"repeats", t.repeats}};
  };
  ordered_json line{{"context", row.context},
                    {"batch", row.batch},
                    {"step_us", times(row.nsa)},
                    {"bytes_read", row.bytes},
                    {"gb_s", row.bytes / 1e6 / row.nsa.median},
                    {"bound_us", row.bound_us},
                    {"of_bound", 1e3 * row.nsa.median / row.bound_us}};
  for (const Dense& dense : row.dense)
    line["dense_us"][dense.backend] = times(dense.times);
  std::printf("%s\n", line.dump().c_str());
}

void print_row(const Row& row) {
  const double us = 1e3 * row.nsa.median;
  std::printf("%8lld %6lld %9.1f %17s %9.1f %8.0f %9.1f %9.2f", static_cast<long long>(row.context),
              static_cast<long long>(row.batch), us,
              (std::to_string(std::lround(1e3 * row.nsa.low)) + "-" +
               std::to_string(std::lround(1e3 * row.nsa.high)))
                  .c_str(),
              row.bytes / 1e6, row.bytes / 1e3 / us, row.bound_us, us / row.bound_us);
  if (!row.dense.empty()) {
    const Dense& best = row.dense.front();
    std::printf(" %10.1f %-9s %8.2f", 1e3 * best.times.median, best.backend.c_str(),
                best.times.median / row.nsa.median);
  }
  std::printf("\n");
}

void run(const bench::DecodeOptions& o) {
  const Status loaded = bench::load_kernels(o.library);
  if (!loaded) die(loaded.error().what);
  const MonotonicTime begin = MonotonicTime::now();
  const bench::Timer timer;
  const bench::Ceilings ceilings = bench::measure_ceilings(timer);
  const std::string device = bench::device_name();
  const std::string build = build_info().version + "+" + build_info().commit;
  if (o.json) {
    std::printf(
        "%s\n",
        ordered_json{{"device", device}, {"build", build}, {"copy_gb_s", ceilings.copy_gb_s}}
            .dump()
            .c_str());
  } else {
    std::printf("%s, nsa-bench %s\ncopy: %.0f GB/s, which bounds are of\n"
                "%8s %6s %9s %17s %9s %8s %9s %9s %10s %-9s %8s\n",
                device.c_str(), build.c_str(), ceilings.copy_gb_s, "context", "batch", "step us",
                "p10-p90", "read MB", "GB/s", "bound us", "of bound", "dense us", "by",
                "dense/NSA");
  }
  int left_out = 0;
  for (const int64_t batch : o.batches)
    for (const int64_t context : o.contexts) {
      if (to_seconds(MonotonicTime::now() - begin) > o.seconds) {
        ++left_out;
        continue;
      }
      const ops::DecodeInputs in = caches(o, context, batch);
      Row row{context, batch, bench::bytes_read(context, batch, o.groups, kHeadDimension),
              0,       {},    {}};
      row.bound_us = row.bytes / 1e3 / ceilings.copy_gb_s;
      row.nsa = timer.time([&] { ops::decode_attention(in, {}, ops::Kernels::kFused); }, o.repeats,
                           o.row_seconds);
      if (o.dense) row.dense = measure_dense(o, timer, in);
      o.json ? print_json(row) : print_row(row);
      std::fflush(stdout);
    }
  if (left_out > 0)
    std::fprintf(stderr, "%d rows were left out: --seconds %.0f were over\n", left_out, o.seconds);
}

} // namespace

int main(int argc, char** argv) {
  bench::DecodeOptions options;
  bench::read_or_exit(bench::decode_command(options), argc, argv);
  try {
    run(options);
  } catch (const c10::Error& error) {
    die(error.what_without_backtrace());
  } catch (const std::exception& error) {
    die(error.what());
  }
}
