// Checks the attention kernels against float64 on the device, and times them.
//
//   nsa-kernel-check check [--seconds N]  correctness cases, the most telling first, until N
//                                         seconds have passed; exit code 1 when one fails. --match
//                                         TEXT and --without TEXT choose by name
//   nsa-kernel-check layers               of the kernels around attention alone, and their times
//   nsa-kernel-check long S               one long sequence against float64 (minutes at 128K);
//                                         131072 --heads 16: 2^31 elements in one buffer
//   nsa-kernel-check repeat S N           N runs that must give the same bits of every result
//   nsa-kernel-check bench S [S ...]      median times over 32,768 tokens (65,536 at 64K), forward
//                                         and backward
//   nsa-kernel-check intervals S [S ...]  median times of each kernel of the window, the compressed
//                                         branch, the causal prefix and the dense twin's attention
//   nsa-kernel-check selection S [S ...]  median time of the choice of blocks alone
//   nsa-kernel-check documents [tokens]   median times over rows of packed documents, batched and
//                                         one by one, and of each batch
//   nsa-kernel-check once S [tokens]      one forward and backward, for profilers and
//                                         compute-sanitizer
// bench, documents, long, once and repeat take --query-major TOKENS (FusedTuning), --heads N (a
// group), --groups N and --head-dim N; long and repeat --batch N; once --given (blocks, some of
// them twice). --portable: the portable kernels where Hopper's serve as well. --partials
// bf16|packed: FusedTuning::partial_out, in every mode; bench takes both after a comma and times
// them in turn.
// --ways NAMES: launches that overlap and other fields of FusedTuning, see Way; bench takes several
// after commas. bench --whole leaves out the branches alone, bench and once --selected have that
// branch alone.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "nsa_model/kernels/check/attention_case.h"
#include "nsa_model/kernels/check/causal_case.h"
#include "nsa_model/kernels/check/documents_case.h"
#include "nsa_model/kernels/check/interval_bench.h"
#include "nsa_model/kernels/check/layer_case.h"
#include "nsa_model/kernels/check/measure.h"
#include "nsa_model/kernels/check/reference_case.h"
#include "nsa_model/kernels/check/timing.h"
#include "nsa_model/kernels/common/launch.h"
#include "nsa_model/kernels/oracle/oracle.h"
#include "nsa_model/kernels/selection/selection.h"

namespace nsa::kernels::check {
namespace {

// RMSE ratio to float64 of outputs and gradients. BF16 rounding of a result alone is 0.17 %. Where
// BF16 itself loses more (with one-hot scores a gradient is a small difference that contains the
// rounded output), a gradient may be kPlainFactor times as bad as the plain BF16 evaluation.
constexpr double kOutputTolerance = 0.005;
constexpr double kGradientTolerance = 0.01;
constexpr double kPlainFactor = 1.5;

// Of a choice of blocks against float64 scores of the same inputs, relative to a row's best score:
// FP32 may confuse what is nearly equal; it may be off by more in few rows; and never clearly.
constexpr double kNearlyEqual = 1e-5;
constexpr double kClearlyWorse = 2e-3;
constexpr double kMostSwapped = 0.01; // of the scored rows

// One case's verdicts: a line when all is well, every failed tensor otherwise.
class Report {
public:
  explicit Report(std::string title) : title_(std::move(title)) {}
  // `plain_error` of the plain BF16 evaluation is asked for only beyond the tolerance.
  void verdict(const char* what, const ErrorNorm& norm, double tolerance,
               const std::function<double()>& plain_error = {}) {
    if (plain_error && norm.relative > tolerance) {
      const double plain = plain_error();
      std::printf("  over %.4f: %s relative %.5f, plain BF16 %.5f\n", tolerance, what,
                  norm.relative, plain);
      tolerance = std::max(tolerance, kPlainFactor * plain);
    }
    const double part = norm.relative / tolerance;
    if (norm.invalid != 0 || !(norm.relative <= tolerance)) {
      ++failures_;
      std::printf("  FAIL %-10s relative %.5f (limit %.4f) worst %.4f invalid %zu\n", what,
                  norm.relative, tolerance, norm.worst, norm.invalid);
    }
    if (!(part <= worst_)) {
      worst_ = part;
      worst_name_ = what;
      worst_value_ = norm.relative;
    }
  }
  void expect(const std::string& what, bool good) {
    if (good) return;
    ++failures_;
    std::printf("  FAIL %s\n", what.c_str());
  }
  // Prints the line; true when nothing failed.
  bool finish(double seconds) const {
    std::printf("%s %-44s %5.2f s  nearest its limit: %s %.5f (%.0f %%)\n",
                failures_ == 0 ? "ok  " : "FAIL", title_.c_str(), seconds, worst_name_,
                worst_value_, 100.0 * worst_);
    std::fflush(stdout);
    return failures_ == 0;
  }

private:
  std::string title_;
  int failures_ = 0;
  double worst_ = 0.0;
  double worst_value_ = 0.0;
  const char* worst_name_ = "-";
};

double now_seconds() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

std::string title_of(const std::string& name, const CaseOptions& options) {
  const AttentionShape& shape = options.shape;
  return name + " B" + std::to_string(shape.batch) + " S" + std::to_string(shape.sequence) + " G" +
         std::to_string(shape.groups) + " heads " + std::to_string(shape.heads) +
         (shape.head_dim == kHeadDim ? "" : " d " + std::to_string(shape.head_dim)) +
         (options.tuning.family == KernelFamily::kPortable ? " portable" : "") +
         (options.tuning.partial_out == PartialFormat::kBf16 ? " bf16" : "");
}

struct BranchOracle {
  DeviceBuffer<double> out, lse, d_q, d_k, d_v;
  OracleParams params;

  // `causal`: a window over everything, without gates.
  BranchOracle(const AttentionCase& c, int branch, bool plain_bf16 = false, bool causal = false) {
    const std::size_t keys = branch == 0 ? c.cmp_count : c.key_count;
    const auto dim = static_cast<std::size_t>(c.options.shape.head_dim);
    out = DeviceBuffer<double>(c.rows * dim);
    lse = DeviceBuffer<double>(c.rows);
    d_q = DeviceBuffer<double>(c.rows * dim);
    d_k = DeviceBuffer<double>(keys);
    d_v = DeviceBuffer<double>(keys);
    params.shape = c.options.shape;
    params.branch = static_cast<Branch>(branch);
    params.plain_bf16 = plain_bf16;
    params.scale = static_cast<double>(c.scale());
    params.q = c.q.get();
    params.k = branch == 0 ? c.k_cmp.get() : c.k[branch].get();
    params.v = branch == 0 ? c.v_cmp.get() : c.v[branch].get();
    params.indices = c.selected().get();
    params.out = out.get();
    params.lse = lse.get();
    params.d_out = c.d_out.get();
    params.gates = causal ? nullptr : c.gates.get();
    if (causal) params.window = c.options.shape.sequence;
    params.d_q = d_q.get();
    params.d_k = d_k.get();
    params.d_v = d_v.get();
    cuda_check(launch_oracle_forward(params, nullptr), "oracle forward");
    cuda_check(launch_oracle_backward(params, nullptr), "oracle backward");
  }
};

float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

// Pooled keys against float64 on the CPU.
ErrorNorm pooling_error(const std::vector<__nv_bfloat16>& fine,
                        const std::vector<__nv_bfloat16>& pooled, const AttentionShape& shape) {
  const std::size_t width = static_cast<std::size_t>(shape.groups * shape.head_dim);
  const std::size_t compressed = static_cast<std::size_t>(compressed_count(shape.sequence));
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < pooled.size() && compressed > 0; ++i) {
    const std::size_t batch = i / width / compressed;
    const std::size_t start = i / width % compressed * kCompressStride;
    double mean = 0.0;
    for (std::size_t t = 0; t < kCompressLength; ++t) {
      mean += to_float(fine[(batch * shape.sequence + start + t) * width + i % width]);
    }
    mean /= kCompressLength;
    difference += std::pow(to_float(pooled[i]) - mean, 2);
    norm += mean * mean;
  }
  ErrorNorm result;
  result.relative = norm > 0.0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  result.invalid = std::isfinite(result.relative) ? 0 : 1;
  return result;
}

// The gradient of pooling of a float64 gradient, on the CPU.
std::vector<double> unpool(const std::vector<double>& pooled, const AttentionShape& shape) {
  const std::size_t width = static_cast<std::size_t>(shape.groups * shape.head_dim);
  const std::size_t compressed = static_cast<std::size_t>(compressed_count(shape.sequence));
  std::vector<double> fine(static_cast<std::size_t>(shape.batch) * shape.sequence * width, 0.0);
  for (std::size_t i = 0; i < pooled.size() && compressed > 0; ++i) {
    const std::size_t batch = i / width / compressed;
    const std::size_t start = i / width % compressed * kCompressStride;
    for (std::size_t t = 0; t < kCompressLength; ++t) {
      fine[(batch * shape.sequence + start + t) * width + i % width] += pooled[i] / kCompressLength;
    }
  }
  return fine;
}

// Invariants of the selection, and that no block was left out whose score is clearly above one
// taken. Of every row, however long the sequence.
void check_selection(const AttentionCase& c, const BranchOracle& compressed, Report& report) {
  const AttentionShape& shape = c.options.shape;
  const int blocks = block_count(shape.sequence);
  const std::size_t group_rows = c.rows / static_cast<std::size_t>(shape.heads);
  // Some rows' scores at a time: all of a long sequence would take gigabytes.
  constexpr std::size_t kScores = std::size_t{1} << 25;
  const std::size_t most_rows =
      std::min(group_rows, std::max<std::size_t>(1, kScores / static_cast<std::size_t>(blocks)));
  DeviceBuffer<double> device_scores(most_rows * static_cast<std::size_t>(blocks));
  std::vector<double> scores;
  OracleScoresParams params;
  params.shape = shape;
  params.q = c.q.get();
  params.k_cmp = c.k_cmp.get();
  params.scale = static_cast<double>(c.scale());
  params.lse = compressed.lse.get();
  params.scores = device_scores.get();
  const std::vector<int32_t> indices = c.indices.to_host();
  std::size_t broken = 0;
  std::size_t wrong = 0;
  std::size_t scored = 0;
  std::size_t swapped = 0; // near the cut, but further than FP32 should be off
  for (std::size_t row = 0; row < group_rows; ++row) {
    if (row % most_rows == 0) {
      params.first_row = static_cast<int64_t>(row);
      params.rows = static_cast<int64_t>(std::min(most_rows, group_rows - row));
      cuda_check(launch_oracle_scores(params, nullptr), "oracle scores");
      scores = device_scores.to_host();
    }
    const int token =
        static_cast<int>(row / static_cast<std::size_t>(shape.groups)) % shape.sequence;
    const int own = token / kBlock;
    const int32_t* slots = &indices[row * kSlots];
    const int expected = std::min(kSlots, own + 1);
    std::vector<bool> taken(static_cast<std::size_t>(blocks), false);
    bool good = true;
    for (int i = 0; i < kSlots; ++i) {
      good = good &&
             (i < expected ? slots[i] >= 0 && slots[i] <= own && (i == 0 || slots[i] > slots[i - 1])
                           : slots[i] == -1);
      if (good && i < expected) taken[static_cast<std::size_t>(slots[i])] = true;
    }
    good = good && taken[0] && taken[static_cast<std::size_t>(own)] &&
           taken[static_cast<std::size_t>(std::max(0, own - 1))];
    if (!good) {
      ++broken;
      continue;
    }
    if (own >= kSlots) ++scored;
    const double* score = &scores[row % most_rows * static_cast<std::size_t>(blocks)];
    double least_taken = INFINITY;
    double most_left = -INFINITY;
    double most = 0.0;
    bool tie_upwards = false; // a left-out block equals a taken one of higher number
    for (int b = 1; b <= own - 2; ++b) {
      most = std::max(most, score[b]);
      if (taken[static_cast<std::size_t>(b)]) {
        least_taken = std::min(least_taken, score[b]);
      } else {
        most_left = std::max(most_left, score[b]);
      }
    }
    if (c.options.key_deviation == 0.0f && own >= kSlots) { // all equal: exactly the lowest blocks
      for (int b = 1; b <= kSlots - 3; ++b)
        tie_upwards = tie_upwards || !taken[static_cast<std::size_t>(b)];
    }
    const double gap = most_left - least_taken;
    if (gap > kClearlyWorse * most) {
      ++wrong;
    } else if (gap > kNearlyEqual * most) {
      ++swapped;
    }
    if (tie_upwards) ++wrong;
  }
  const std::string counts = "selection: " + std::to_string(broken) + " rows broken, " +
                             std::to_string(wrong) + " wrong, " + std::to_string(swapped) +
                             " swapped near the cut, of " + std::to_string(scored) + " scored ones";
  if (swapped > 0) std::printf("  %s\n", counts.c_str());
  report.expect(counts, broken + wrong == 0 && static_cast<double>(swapped) <=
                                                   kMostSwapped * static_cast<double>(scored));
}

double relative_error(const std::vector<double>& value, const std::vector<double>& exact) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    difference += std::pow(value[i] - exact[i], 2);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(difference / norm);
}

void expect_same(const std::vector<AttentionCase::Hash>& first,
                 const std::vector<AttentionCase::Hash>& now, const std::string& what,
                 Report& report) {
  for (std::size_t i = 0; i < first.size(); ++i)
    report.expect(what + " gives other bits: " + first[i].name, now.at(i) == first[i]);
}

// Of the whole (part 0) or of one branch alone: selected, compressed, window.
CaseOptions part_of(CaseOptions options, int part) {
  constexpr int kBranch[] = {-1, 1, 0, 2};
  for (int branch = 0; part > 0 && branch < kBranches; ++branch)
    options.branch_on[branch] = branch == kBranch[part];
  if (part == 1) options.selection = Selection::kGiven;
  return options;
}
// Blocks for the selected branch alone, as all branches together would choose them.
void choose_blocks(AttentionCase& c) {
  if (c.options.selection != Selection::kGiven) return;
  CaseOptions all = c.options;
  all.selection = Selection::kScored;
  for (bool& on : all.branch_on)
    on = true;
  AttentionCase chooser(all);
  chooser.forward();
  c.indices.from_host(chooser.indices.to_host());
}

bool run_case(const std::string& name, const CaseOptions& options) {
  const double start = now_seconds();
  const auto dim = static_cast<std::size_t>(options.shape.head_dim);
  Report report(title_of(name, options));
  AttentionCase c(options);
  choose_blocks(c);
  c.forward();
  cuda_check(cudaDeviceSynchronize(), "forward");
  c.workspace.poison(); // the backward may not lean on what the forward left there
  c.backward();
  cuda_check(cudaDeviceSynchronize(), "backward");

  if (options.branch_on[0])
    report.verdict("k~", pooling_error(c.k[0].to_host(), c.k_cmp.to_host(), options.shape), 0.003);
  if (options.branch_on[0])
    report.verdict("v~", pooling_error(c.v[0].to_host(), c.v_cmp.to_host(), options.shape), 0.003);
  Reference gated_out;
  Reference d_q;
  gated_out.gates = c.gates.get();
  gated_out.row = dim;
  std::vector<BranchOracle> oracles;
  const char* names[kBranches][5] = {{"o_cmp", "lse_cmp", "dk_cmp", "dv_cmp", "dgate_cmp"},
                                     {"o_slc", "lse_slc", "dk_slc", "dv_slc", "dgate_slc"},
                                     {"o_win", "lse_win", "dk_win", "dv_win", "dgate_win"}};
  for (int branch = 0; branch < kBranches; ++branch) {
    oracles.emplace_back(c, branch);
    const BranchOracle& oracle = oracles.back();
    if (!options.branch_on[branch]) continue;
    gated_out.parts[branch] = oracle.out.get();
    d_q.parts[branch] = oracle.d_q.get();
    Reference out;
    out.parts[0] = oracle.out.get();
    Reference lse;
    lse.parts[0] = oracle.lse.get();
    report.verdict(names[branch][0], error_norm(c.branch_out[branch].get(), out, c.rows * dim),
                   kOutputTolerance);
    report.verdict(names[branch][1], error_norm(c.branch_lse[branch].get(), lse, c.rows), 1e-4);
    Reference d_k;
    Reference d_v;
    DeviceBuffer<double> fine_k;
    DeviceBuffer<double> fine_v;
    d_k.parts[0] = oracle.d_k.get();
    d_v.parts[0] = oracle.d_v.get();
    if (branch == 0) {
      fine_k = DeviceBuffer<double>(c.key_count);
      fine_v = DeviceBuffer<double>(c.key_count);
      fine_k.from_host(unpool(oracle.d_k.to_host(), options.shape));
      fine_v.from_host(unpool(oracle.d_v.to_host(), options.shape));
      d_k.parts[0] = fine_k.get();
      d_v.parts[0] = fine_v.get();
    }
    // With equal keys dK is a difference of equal numbers: its norm is rounding, and only its size
    // is judged.
    const bool degenerate = options.key_deviation == 0.0f;
    const auto plain = [&](DeviceBuffer<double> BranchOracle::* gradient) {
      return [&c, &oracle, branch, gradient] {
        std::vector<double> value = (BranchOracle(c, branch, true).*gradient).to_host();
        std::vector<double> exact = (oracle.*gradient).to_host();
        if (branch == 0) {
          value = unpool(value, c.options.shape);
          exact = unpool(exact, c.options.shape);
        }
        return relative_error(value, exact);
      };
    };
    report.verdict(names[branch][2], error_norm(c.d_k[branch].get(), d_k, c.key_count),
                   degenerate ? 0.05 : kGradientTolerance, plain(&BranchOracle::d_k));
    report.verdict(names[branch][3], error_norm(c.d_v[branch].get(), d_v, c.key_count),
                   kGradientTolerance, plain(&BranchOracle::d_v));
  }
  report.verdict("out", error_norm(c.out.get(), gated_out, c.rows * dim), kOutputTolerance);
  const auto plain_d_q = [&] {
    std::vector<double> sums[2]; // exact, plain
    for (int branch = 0; branch < kBranches; ++branch) {
      if (!options.branch_on[branch]) continue;
      const std::vector<double> parts[2] = {oracles[static_cast<std::size_t>(branch)].d_q.to_host(),
                                            BranchOracle(c, branch, true).d_q.to_host()};
      for (int i = 0; i < 2; ++i) {
        sums[i].resize(parts[i].size());
        std::transform(parts[i].begin(), parts[i].end(), sums[i].begin(), sums[i].begin(),
                       std::plus<>());
      }
    }
    return relative_error(sums[1], sums[0]);
  };
  report.verdict("dq", error_norm(c.d_q.get(), d_q, c.rows * dim), kGradientTolerance, plain_d_q);
  { // d_gate = <d_out, o_branch>, from what the kernels rounded o to
    const std::vector<float> got = c.d_gates.to_host();
    const std::vector<__nv_bfloat16> d_out = c.d_out.to_host();
    ErrorNorm norm;
    double difference = 0.0;
    double size = 0.0;
    for (int branch = 0; branch < kBranches; ++branch) {
      const std::vector<double> out = oracles[static_cast<std::size_t>(branch)].out.to_host();
      for (std::size_t row = 0; row < c.rows; ++row) {
        double expected = 0.0;
        for (std::size_t i = 0; i < dim; ++i) {
          expected += out[row * dim + i] * to_float(d_out[row * dim + i]);
        }
        if (!options.branch_on[branch]) expected = 0.0;
        const double error = got[row * 3 + static_cast<std::size_t>(branch)] - expected;
        if (!std::isfinite(error)) ++norm.invalid;
        difference += error * error;
        size += expected * expected;
      }
    }
    norm.relative = std::sqrt(difference / size);
    report.verdict("dgates", norm, kOutputTolerance);
  }
  if (options.selection == Selection::kScored && options.branch_on[1])
    check_selection(c, oracles[0], report);

  // A second run over poisoned buffers gives the same bits.
  const auto first = c.hashes();
  c.poison();
  c.forward();
  c.workspace.poison();
  c.backward();
  expect_same(first, c.hashes(), "the second run", report);
  return report.finish(now_seconds() - start);
}

bool run_causal_case(const CaseOptions& options) {
  const double start = now_seconds();
  const auto dim = static_cast<std::size_t>(options.shape.head_dim);
  Report report(title_of("causal over everything", options));
  CausalCase causal(options);
  const AttentionCase& c = causal.buffers;
  const auto run = [&] {
    causal.forward();
    cuda_check(cudaDeviceSynchronize(), "forward");
    causal.workspace.poison(); // the backward may not lean on what is there
    causal.backward();
    cuda_check(cudaDeviceSynchronize(), "backward");
  };
  run();
  constexpr int kWindowBranch = 2;
  const BranchOracle oracle(c, kWindowBranch, false, true);
  const auto judge = [&](const char* what, const auto& value,
                         DeviceBuffer<double> BranchOracle::* exact, std::size_t count,
                         double tolerance, bool gradient) {
    Reference reference;
    reference.parts[0] = (oracle.*exact).get();
    const auto plain = [&] {
      return relative_error((BranchOracle(c, kWindowBranch, true, true).*exact).to_host(),
                            (oracle.*exact).to_host());
    };
    report.verdict(what, error_norm(value.get(), reference, count), tolerance,
                   gradient ? std::function<double()>(plain) : nullptr);
  };
  judge("o", c.branch_out[kWindowBranch], &BranchOracle::out, c.rows * dim, kOutputTolerance,
        false);
  judge("lse", c.branch_lse[kWindowBranch], &BranchOracle::lse, c.rows, 1e-4, false);
  judge("dq", c.d_q, &BranchOracle::d_q, c.rows * dim, kGradientTolerance, true);
  judge("dk", c.d_k[kWindowBranch], &BranchOracle::d_k, c.key_count, kGradientTolerance, true);
  judge("dv", c.d_v[kWindowBranch], &BranchOracle::d_v, c.key_count, kGradientTolerance, true);
  const auto first = c.hashes();
  causal.poison();
  run();
  expect_same(first, c.hashes(), "the second run", report);
  return report.finish(now_seconds() - start);
}

bool run_reference_case(const std::string& name, const CaseOptions& options) {
  const double start = now_seconds();
  Report report(title_of(name + " by the CPU oracle", options));
  for (const NamedError& error : compare_with_reference(options)) {
    ErrorNorm norm;
    norm.relative = error.relative;
    norm.invalid = std::isfinite(error.relative) ? 0 : 1;
    report.verdict(error.name, norm, error.gradient ? kGradientTolerance : kOutputTolerance);
  }
  return report.finish(now_seconds() - start);
}

// Overlapping launches change no bit.
bool run_overlap_case(const CaseOptions& options) {
  const double start = now_seconds();
  Report report(title_of("overlapping launches", options));
  AttentionCase c(options);
  const bool usual = overlap_launches;
  std::vector<AttentionCase::Hash> first;
  for (int run = 0; run < 4; ++run) {
    overlap_launches = run > 0;
    c.poison();
    c.forward();
    c.backward();
    if (run == 0) first = c.hashes();
    expect_same(first, c.hashes(), "run " + std::to_string(run), report);
  }
  overlap_launches = usual;
  return report.finish(now_seconds() - start);
}

// A second backward over the same lists gives the same bits, and a second forward makes them anew:
// before each but the first pass nothing but the pass before can have brought the claims' counter
// back to 0.
bool run_claims_case(const CaseOptions& options) {
  const double start = now_seconds();
  Report report(title_of("claimed units", options));
  AttentionCase c(options);
  std::vector<AttentionCase::Hash> first;
  for (int run = 0; run < 3; ++run) {
    c.poison();
    c.forward();
    for (int pass = 0; pass < 2; ++pass) {
      c.workspace.poison();
      c.d_q.poison();
      for (int branch = 0; branch < kBranches; ++branch) {
        c.d_k[branch].poison();
        c.d_v[branch].poison();
      }
      c.backward();
      if (first.empty()) first = c.hashes();
      expect_same(first, c.hashes(), "backward " + std::to_string(pass), report);
    }
  }
  return report.finish(now_seconds() - start);
}

// What a forward leaves of each token, of a batch of one: tokens lie one after another.
struct TokenBits {
  std::string name;
  std::vector<char> bytes;
};
std::vector<TokenBits> forward_bits(AttentionCase& c) {
  c.forward();
  std::vector<TokenBits> all;
  const auto keep = [&](const char* name, const auto& buffer) {
    const auto values = buffer.to_host();
    const char* bytes = reinterpret_cast<const char*>(values.data());
    all.push_back({name, {bytes, bytes + values.size() * sizeof(values[0])}});
  };
  const char* names[kBranches][2] = {
      {"lse_cmp", "o_cmp"}, {"lse_slc", "o_slc"}, {"lse_win", "o_win"}};
  for (int branch = 0; branch < kBranches; ++branch) {
    keep(names[branch][0], c.branch_lse[branch]);
    keep(names[branch][1], c.branch_out[branch]);
    if (branch == 0) keep("indices", c.indices); // they come of lse_cmp, and o_slc of them
  }
  keep("out", c.out);
  return all;
}

// Whatever the tokens from a cut on are (their keys and values are 20 times as large here), no bit
// of what went before depends on them.
bool run_future_case(const CaseOptions& options) {
  const double start = now_seconds();
  const int sequence = options.shape.sequence;
  Report report(title_of("future tokens", options));
  AttentionCase c(options);
  const std::vector<TokenBits> before = forward_bits(c);
  for (const int cut : {1, sequence / 3, sequence * 3 / 5, sequence - 1}) {
    AttentionCase changed(options);
    uint64_t seed = (options.seed + 1) * 16;
    const auto replace = [&](DeviceBuffer<__nv_bfloat16>& x, float deviation) {
      const std::size_t from = x.size() / static_cast<std::size_t>(sequence) * cut;
      fill_normal(x.get() + from, x.size() - from, deviation, seed++);
    };
    replace(changed.q, 1.0f);
    for (int branch = 0; branch < kBranches; ++branch) {
      replace(changed.k[branch], 20.0f);
      replace(changed.v[branch], 20.0f);
    }
    const std::vector<TokenBits> after = forward_bits(changed);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const std::size_t token_bytes = before[i].bytes.size() / static_cast<std::size_t>(sequence);
      int differ = 0;
      int first = 0;
      for (int token = cut - 1; token >= 0; --token) {
        if (std::memcmp(&before[i].bytes[token * token_bytes], &after[i].bytes[token * token_bytes],
                        token_bytes) == 0)
          continue;
        ++differ;
        first = token;
      }
      report.expect(before[i].name + " of " + std::to_string(differ) + " tokens, the first " +
                        std::to_string(first) + ", depends on those from " + std::to_string(cut) +
                        " on",
                    differ == 0);
    }
    report.expect("tokens from " + std::to_string(cut) + " on change nothing at all",
                  before.back().bytes != after.back().bytes);
  }
  return report.finish(now_seconds() - start);
}

// A forward and backward recorded as a CUDA graph gives the bits of one that was not, twice.
bool run_graph_case(const std::string& name, const CaseOptions& options) {
  const double start = now_seconds();
  Report report(title_of(name, options));
  AttentionCase c(options);
  c.forward();
  c.backward();
  const std::vector<AttentionCase::Hash> first = c.hashes();
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runnable = nullptr;
  cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  c.forward(stream);
  c.backward(stream);
  cuda_check(cudaStreamEndCapture(stream, &graph), "end of capture");
  cuda_check(cudaGraphInstantiate(&runnable, graph, 0), "instantiate");
  for (int run = 0; run < 2; ++run) {
    c.poison();
    cuda_check(cudaDeviceSynchronize(), "poison");
    cuda_check(cudaGraphLaunch(runnable, stream), "graph launch");
    cuda_check(cudaStreamSynchronize(stream), "graph");
    expect_same(first, c.hashes(), "the graph", report);
  }
  cudaGraphExecDestroy(runnable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return report.finish(now_seconds() - start);
}

// Packed documents give what each gives alone, batched and one by one.
bool run_documents_case(const std::string& name, const DocumentsOptions& options) {
  const double start = now_seconds();
  Report report(title_of(name, options.attention));
  for (const std::string& failure : compare_with_alone(options))
    report.expect(failure, false);
  return report.finish(now_seconds() - start);
}

// The family that serves a shape here.
KernelFamily family_of(const AttentionShape& shape, bool portable) {
  int device = 0;
  int major = 0;
  int minor = 0;
  cuda_check(cudaGetDevice(&device), "device");
  cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "device");
  cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "device");
  return portable ? KernelFamily::kPortable : kernel_family(10 * major + minor, shape.head_dim);
}

// "bf16", "packed" or both after a comma; none where it is something else.
std::vector<PartialFormat> partial_formats(const std::string& names) {
  if (names == "bf16") return {PartialFormat::kBf16};
  if (names == "packed") return {PartialFormat::kPacked};
  if (names == "bf16,packed") return {PartialFormat::kBf16, PartialFormat::kPacked};
  return {};
}

// What can be chosen beside shape and formats: names joined by '+', "default" for FusedTuning as it
// is.
struct Way {
  std::string name;
  bool overlap = false;                        // overlap_launches
  int beside_ctas = FusedTuning().beside_ctas; // written beside62x4, the latter beside_turns
  int beside_turns = FusedTuning().beside_turns;
  int list_ctas = FusedTuning().list_ctas;   // written lists24
  int round_rows = FusedTuning().round_rows; // written rows65536

  // All that a way chooses, whatever it was: ways are set one after another.
  void set(FusedTuning& tuning) const {
    overlap_launches = overlap;
    tuning.beside_ctas = beside_ctas;
    tuning.beside_turns = beside_turns;
    tuning.list_ctas = list_ctas;
    tuning.round_rows = round_rows;
  }
};
// The ways after commas; none where a name is unknown.
std::vector<Way> ways_of(const std::string& names) {
  std::vector<Way> ways;
  for (std::size_t begin = 0; begin <= names.size();) {
    const std::size_t end = std::min(names.find(',', begin), names.size());
    Way way;
    way.name = names.substr(begin, end - begin);
    for (std::size_t at = 0; at <= way.name.size();) {
      const std::size_t past = std::min(way.name.find('+', at), way.name.size());
      const std::string word = way.name.substr(at, past - at);
      if (word == "overlap") {
        way.overlap = true;
      } else if (word != "default" && std::sscanf(word.c_str(), "lists%d", &way.list_ctas) != 1 &&
                 std::sscanf(word.c_str(), "rows%d", &way.round_rows) != 1 &&
                 std::sscanf(word.c_str(), "beside%dx%d", &way.beside_ctas, &way.beside_turns) !=
                     2) {
        return {};
      }
      at = past + 1;
    }
    ways.push_back(way);
    begin = end + 1;
  }
  return ways;
}

struct CheckOptions {
  double seconds = 1e9;
  std::string match;   // only cases whose names hold it
  std::string without; // and do not hold this
  bool portable = false;
  PartialFormat partials = FusedTuning().partial_out;
  Way way;
};
struct Case {
  std::string name;
  std::function<bool()> run;
};

// The most telling cases first: they are run until the time is over.
int check_all(const CheckOptions& wanted) {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, AttentionShape shape, auto change) {
    CaseOptions options;
    options.shape = shape;
    options.seed = static_cast<uint64_t>(shape.sequence) + 1;
    options.tuning.family = family_of(shape, wanted.portable);
    options.tuning.partial_out = wanted.partials;
    wanted.way.set(options.tuning);
    change(options);
    cases.push_back({name, [=] { return run_case(name, options); }});
  };
  const auto as_it_is = [](CaseOptions&) {};
  const auto with = [](Selection selection) {
    return [=](CaseOptions& options) { options.selection = selection; };
  };
  const auto portable = [](CaseOptions& options) {
    options.tuning.family = KernelFamily::kPortable;
  };
  const auto query_major = [](int tokens) {
    return [=](CaseOptions& options) { options.tuning.query_major_tokens = tokens; };
  };
  add("scored", {2, 2048, 2}, as_it_is);
  add("lists from 1024 on", {2, 2300, 2}, query_major(kDensePrefix));
  for (const float deviation : {12.0f, 40.0f, 3000.0f}) { // rows of one key and nearly so
    add("lists, query deviation " + std::to_string(static_cast<int>(deviation)), {1, 2300, 2},
        [=](CaseOptions& options) {
          options.tuning.query_major_tokens = kDensePrefix;
          options.query_deviation = deviation;
        });
  }
  add("bf16 partial results", {1, 2300, 2}, [](CaseOptions& options) {
    options.tuning.query_major_tokens = kDensePrefix;
    options.tuning.partial_out = PartialFormat::kBf16;
  });
  add("joint dQ", {2, 2300, 2}, as_it_is);
  add("joint dQ", {1, 1300, 1, 16}, as_it_is);
  add("joint dQ", {1, 1300, 2, 1}, as_it_is);
  add("joint dQ", {2, 1100, 2, 5}, as_it_is);
  for (const int sequence : {1, 20, 31, 47, 64, 127, 333, 3001})
    add("joint dQ", {2, sequence, 2}, as_it_is);
  add("joint dQ, gates of zero", {1, 1200, 2},
      [](CaseOptions& options) { options.zero_gates = true; });
  add("joint dQ, sharp", {1, 1200, 2},
      [](CaseOptions& options) { options.query_deviation = 3000.0f; });
  for (const int ctas : {0, 62}) {
    CaseOptions options;
    options.shape = {2, 2300, 2};
    options.tuning.family = family_of(options.shape, wanted.portable);
    options.tuning.query_major_tokens = kDensePrefix;
    options.tuning.beside_ctas = ctas;
    cases.push_back({"graph, window beside sums",
                     [=] { return run_graph_case("graph, window beside sums", options); }});
  }
  const auto add_claimed = [&](const AttentionShape& shape, auto change) {
    CaseOptions options;
    options.shape = shape;
    options.tuning.family = family_of(shape, wanted.portable);
    options.tuning.partial_out = wanted.partials;
    wanted.way.set(options.tuning);
    change(options);
    cases.push_back({"claimed units", [=] { return run_claims_case(options); }});
  };
  // First tokens beside lists and sums, and gradients that no other branch is added to.
  for (const AttentionShape& shape :
       {AttentionShape{2, 4100, 2}, AttentionShape{5, 14000, 1}, AttentionShape{1, 3300, 2, 5},
        AttentionShape{2, 2300, 2}, AttentionShape{1, 1000, 2}}) {
    for (int part = 1; part <= kBranches; ++part) {
      if (part > 1 && shape.sequence != 2300) continue;
      add("branch alone", shape, [=](CaseOptions& options) { options = part_of(options, part); });
    }
  }
  // The first tokens' dK and dV of some lanes only beside the sum of dQ.
  add("window off", {4, 2048, 2}, [](CaseOptions& options) { options.branch_on[2] = false; });
  for (const int ctas : {0, 1, 1000}) {
    add("first tokens beside lists", {2, 2300, 2}, [=](CaseOptions& options) {
      options.tuning.list_ctas = ctas;
      options.tuning.beside_ctas = ctas;
    });
    add("first tokens beside, window off", {1, 4100, 2}, [=](CaseOptions& options) {
      options.tuning.list_ctas = ctas;
      options.tuning.beside_ctas = ctas;
      options.branch_on[2] = false;
    });
  }
  add_claimed({2, 2300, 2}, query_major(kDensePrefix));
  add_claimed({1, 1025, 1}, query_major(kDensePrefix));  // fewer units than CTAs
  add_claimed({1, 1, 1}, with(Selection::kSomeEmpty));   // none
  add_claimed({1, 4096, 2}, with(Selection::kHotBlock)); // long lists
  add_claimed({5, 14000, 1}, as_it_is);                  // two rounds
  for (const int heads : {1, 5, 16})
    add_claimed({1, 1300, 2, heads}, query_major(kDensePrefix));
  add_claimed({2, 2300, 2}, [](CaseOptions& options) {
    options.tuning.query_major_tokens = kDensePrefix;
    options.tuning.partial_out = PartialFormat::kBf16;
  });
  for (const int ctas : {1, 62, 1000}) {
    const auto beside = [=](CaseOptions& options) {
      options.tuning.beside_ctas = ctas;
      options.tuning.beside_turns = ctas == 1000 ? 1 : 2;
    };
    add("window beside sums", {2, 2300, 2}, beside);
    add("window beside sums", {1, 1100, 3, 5}, beside);
    add("window beside sums, two rounds", {5, 14000, 1}, beside);
    add("window beside sums, compressed branch off", {1, 1300, 2}, [=](CaseOptions& options) {
      beside(options);
      options.branch_on[0] = false;
      options.selection = Selection::kRandom; // nothing scores the blocks
    });
  }
  const auto add_causal = [&](const AttentionShape& shape, float query_deviation = 1.0f) {
    if (family_of(shape, wanted.portable) != KernelFamily::kHopper) return;
    CaseOptions options;
    options.shape = shape;
    options.seed = static_cast<uint64_t>(shape.sequence) + 2;
    options.query_deviation = query_deviation;
    cases.push_back({"causal over everything", [=] { return run_causal_case(options); }});
  };
  for (const int sequence : {300, 2300, 4100})
    add_causal({2, sequence, 2});
  add_causal({1, 9100, 1});
  for (const int sequence : {1, 31, 63, 64, 65, 127, 1000})
    add_causal({2, sequence, 2});
  for (const int heads : {1, 4, 5, 7, 16})
    add_causal({1, 1300, 2, heads});
  for (const float deviation : {12.0f, 3000.0f})
    add_causal({1, 1200, 2}, deviation);
  add_causal({8, 4096, 1});     // rounds of lanes
  add_causal({1, 33000, 1, 2}); // bands of tokens
  add("scored", {1, 2048, 2, 6, 128}, as_it_is);
  add("scored by portable kernels", {1, 2048, 2}, portable);
  add("blocks masked to 2048", {1, 2300, 2}, query_major(2048));
  add("four heads", {1, 1500, 2, 4}, as_it_is);
  add("five heads", {1, 1300, 1, 5}, as_it_is);
  add("sixteen heads", {1, 1300, 1, 16}, as_it_is);
  add("one head", {1, 1300, 2, 1}, as_it_is);
  for (const int heads : {1, 4, 5, 16})
    add("128 dimensions", {1, 1300, 2, heads, 128}, as_it_is);
  add("five heads by portable kernels", {1, 1300, 1, 5}, portable);
  add("128 dimensions, hot blocks", {1, 4096, 1, 6, 128}, with(Selection::kHotBlock));
  const auto add_documents = [&](const AttentionShape& shape, const std::vector<int>& lengths,
                                 bool portable, auto change) {
    DocumentsOptions options;
    options.attention.shape = shape;
    options.attention.tuning.family = family_of(shape, portable);
    options.attention.tuning.partial_out = wanted.partials;
    wanted.way.set(options.attention.tuning);
    options.documents = documents_of(shape, lengths);
    change(options);
    const std::string name =
        "packed documents" + std::string(options.compressed_given ? ", compressed keys given" : "");
    cases.push_back({name, [=] { return run_documents_case(name, options); }});
  };
  const auto as_packed = [](DocumentsOptions&) {};
  const auto compressed_given = [](DocumentsOptions& options) { options.compressed_given = true; };
  const std::vector<int> few = {700, 1, 20, 1300, 979};
  const std::vector<int> many = {40, 33, 1,   700, 64, 31, 5,    90, 1000, 150,
                                 63, 65, 300, 2,   16, 47, 1025, 32, 520,  260};
  for (const bool portable : {false, true}) {
    const bool by_portable = portable || wanted.portable;
    add_documents({2, 3000, 2}, few, by_portable, as_packed);
    add_documents({2, 4800, 2}, many, by_portable, as_packed);
    add_documents({2, 4800, 2}, many, by_portable, compressed_given);
    add_documents({2, 2500, 2, 5}, many, by_portable, [](DocumentsOptions& options) {
      options.attention.selection = Selection::kRandom; // blocks given
    });
  }
  for (int off = 0; off < kBranches; ++off) {
    add_documents({1, 2500, 2}, many, wanted.portable, [=](DocumentsOptions& options) {
      options.attention.branch_on[off] = false;
      if (off == 0) options.attention.selection = Selection::kRandom;
    });
  }
  add_documents({2, 5500, 1}, {2049, 2600, 840}, wanted.portable, as_packed); // lists
  add_documents({1, 150, 2}, {1}, wanted.portable, as_packed);
  add_documents({2, 3000, 2, 3, 128}, few, true, as_packed);
  const auto add_future = [&](const AttentionShape& shape, bool portable, int query_major = 0) {
    CaseOptions options;
    options.shape = shape;
    options.tuning.family = family_of(shape, portable);
    options.tuning.query_major_tokens = query_major;
    options.tuning.partial_out = wanted.partials;
    cases.push_back({"future tokens", [=] { return run_future_case(options); }});
  };
  for (const bool portable : {false, true}) {
    for (const int sequence : {300, 1900, 4100, 9100})
      add_future({1, sequence, 2}, portable || wanted.portable);
    for (const int heads : {1, 4, 5, 16})
      add_future({1, 1900, 2, heads}, portable || wanted.portable);
  }
  add_future({1, 1900, 2}, wanted.portable, kDensePrefix); // lists
  add_future({1, 1900, 1, 6, 128}, true);
  add("hot blocks", {1, 4096, 2}, with(Selection::kHotBlock));
  add("odd", {3, 333, 2}, as_it_is);
  add("one token", {1, 1, 2}, as_it_is);
  cases.push_back({"kernels around attention", [] { return check_layer_kernels() == 0; }});
  {
    CaseOptions options;
    options.shape = {4, 2048, 2};
    options.tuning.family = family_of(options.shape, wanted.portable);
    cases.push_back({"overlapping launches", [=] { return run_overlap_case(options); }});
  }
  add("blocks masked to 1500", {2, 1700, 1}, query_major(1500));
  add("sharp", {1, 2048, 2}, [](CaseOptions& options) { options.query_deviation = 12.0f; });
  add("huge", {1, 1200, 2}, [](CaseOptions& options) { options.query_deviation = 3000.0f; });
  add("huge lists", {1, 1200, 2}, [](CaseOptions& options) {
    options.tuning.query_major_tokens = kDensePrefix;
    options.query_deviation = 3000.0f;
  });
  add("all equal", {1, 2048, 2}, [](CaseOptions& options) { options.key_deviation = 0.0f; });
  add("gates of zero", {1, 1200, 2}, [](CaseOptions& options) { options.zero_gates = true; });
  add("seven heads, random blocks", {2, 700, 2, 7}, with(Selection::kRandom));
  add("twelve heads, hot blocks", {1, 1100, 1, 12}, with(Selection::kHotBlock));
  add("random blocks", {2, 1500, 2}, with(Selection::kRandom));
  for (const auto& [name, selection] : {std::pair{"given rows empty", Selection::kSomeEmpty},
                                        {"given first slots empty", Selection::kFirstSlotsEmpty},
                                        {"given blocks doubled", Selection::kDoubled},
                                        {"given blocks to come", Selection::kFuture},
                                        {"given blocks out of range", Selection::kOutOfRange},
                                        {"given in any order", Selection::kAnyOrder}}) {
    add(name, {1, 1500, 2}, with(selection));
    add(name, {2, 1100, 1, 5, 128}, with(selection));
    add(name, {1, 1300, 2, 4}, [=](CaseOptions& options) {
      options.selection = selection;
      portable(options);
    });
  }
  add("odd scored", {1, 3001, 2}, as_it_is);
  add("no compressed token", {2, 31, 2}, as_it_is);
  add("one compressed token", {1, 47, 2}, as_it_is);
  add("one block over dense", {1, 1025, 1}, as_it_is);
  add("longer units", {1, 36000, 1}, as_it_is);
  add("two rounds", {5, 14000, 1}, as_it_is);
  for (int off = 0; off < kBranches; ++off) {
    add("branch off", {1, 1300, 2}, [=](CaseOptions& options) {
      options.branch_on[off] = false;
      if (off == 0) options.selection = Selection::kRandom; // nothing scores the blocks
    });
  }
  for (const int heads : {2, 3, 8, 9, 10, 11, 13, 14, 15})
    add("heads", {1, 1300, 1, heads}, as_it_is);
  add("no compressed token", {1, 20, 2, 11}, as_it_is);
  CaseOptions small;
  small.shape = {1, 1101, 1};
  small.tuning.family = family_of(small.shape, wanted.portable);
  cases.push_back(
      {"scored by the CPU oracle", [=] { return run_reference_case("scored", small); }});
  small.shape = {2, 210, 2};
  small.selection = Selection::kRandom;
  cases.push_back({"random blocks by the CPU oracle",
                   [=] { return run_reference_case("random blocks", small); }});
  CaseOptions doubled = small;
  doubled.selection = Selection::kDoubled;
  cases.push_back({"given blocks doubled by the CPU oracle",
                   [=] { return run_reference_case("given blocks doubled", doubled); }});
  small.shape.heads = 3;
  cases.push_back(
      {"three heads by the CPU oracle", [=] { return run_reference_case("three heads", small); }});
  small.shape.head_dim = 128;
  small.tuning.family = KernelFamily::kPortable;
  cases.push_back({"128 dimensions by the CPU oracle",
                   [=] { return run_reference_case("128 dimensions", small); }});
  // Random shapes, the same ones in every run.
  std::mt19937 random(20);
  for (int i = 0; i < 12; ++i) {
    const AttentionShape shape = {
        1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % 1800),
        1 + static_cast<int>(random() % 3), 1 + static_cast<int>(random() % kMostHeads),
        i < 6 || i % 2 == 0 ? 64 : 128};
    const Selection selection = random() % 2 == 0 ? Selection::kScored : Selection::kHotBlock;
    add("random shape and heads", shape, [=](CaseOptions& options) {
      options.selection = selection;
      if (i >= 6) portable(options);
    });
  }

  std::erase_if(cases, [&](const Case& c) {
    return c.name.find(wanted.match) == std::string::npos ||
           (!wanted.without.empty() && c.name.find(wanted.without) != std::string::npos);
  });
  if (cases.empty()) {
    std::printf("no case has such a name\n");
    return 2;
  }
  const double start = now_seconds();
  std::size_t run = 0;
  int failed = 0;
  for (; run < cases.size() && now_seconds() - start < wanted.seconds; ++run)
    failed += cases[run].run() ? 0 : 1;
  std::printf("%s: %zu of %zu cases run, %d failed\n", failed == 0 ? "ALL GOOD" : "FAILURES", run,
              cases.size(), failed);
  return failed == 0 ? 0 : 1;
}

// Runs one problem again and again over poisoned buffers; every run must give the same bits of
// every result.
int repeat(CaseOptions options, int sequence, int times) {
  options.shape.sequence = sequence;
  AttentionCase c(options);
  std::vector<AttentionCase::Hash> first;
  for (int run = 0; run < times; ++run) {
    c.poison();
    c.forward();
    c.backward();
    const std::vector<AttentionCase::Hash> now = c.hashes();
    if (run == 0) first = now;
    for (std::size_t i = 0; i < first.size(); ++i) {
      if (now[i] == first[i]) continue;
      std::printf("run %d differs from the first: %s\n", run, first[i].name.c_str());
      return 1;
    }
  }
  std::printf("%s: %d runs gave the same bits of %zu results\n",
              title_of("repeat", options).c_str(), times, first.size());
  return 0;
}

// Times the choice of blocks alone.
void time_selection(int sequence, CaseOptions options) {
  options.shape.batch = std::max(32768, sequence) / sequence;
  options.shape.sequence = sequence;
  AttentionCase c(options);
  c.forward(); // compressed keys and their log-sums
  const SelectionParams params = {.shape = options.shape,
                                  .q = c.q.get(),
                                  .k_cmp = c.k_cmp.get(),
                                  .lse_cmp = c.branch_lse[0].get(),
                                  .scale = c.scale(),
                                  .indices = c.indices.get()};
  constexpr int kTogether = 8; // one by one, the time would be the host's
  const Timing timing = time_of(
      [&] {
        for (int i = 0; i < kTogether; ++i)
          cuda_check(launch_selection(params, nullptr), "selection");
      },
      9);
  std::printf("%7d selection | %7.1f us (%.1f-%.1f)\n", sequence, 1e3 * timing.median / kTogether,
              1e3 * timing.low / kTogether, 1e3 * timing.high / kTogether);
  std::fflush(stdout);
}

int bench(const std::vector<int>& sequences, const CaseOptions& given,
          const std::vector<PartialFormat>& formats, const std::vector<Way>& ways, int first_part,
          int parts) {
  std::printf("%7s %9s %8s | %22s | %22s | %7s | way\n", "S", "part", "partials",
              "forward ms (p10-p90)", "backward ms (p10-p90)", "sum");
  for (const int sequence : sequences) {
    const int tokens = std::max(32768, sequence);
    for (int part = first_part; part < parts; ++part) { // whole, then one branch each
      const char* names[] = {"whole", "selected", "compr.", "window"};
      CaseOptions options = given;
      options.shape.batch = tokens / sequence;
      options.shape.sequence = sequence;
      AttentionCase c(part_of(options, part));
      choose_blocks(c);
      struct Variant {
        PartialFormat format;
        const Way* way;
        std::vector<double> forward, backward;
      };
      std::vector<Variant> variants;
      for (const PartialFormat format : formats) {
        if (part > 1 && format != formats.front()) continue; // these branches have none
        for (const Way& way : ways)
          variants.push_back({format, &way, {}, {}});
      }
      // In turns: the device's clock falls while it works.
      const int turns = variants.size() > 1 ? 4 : 1;
      for (int turn = 0; turn < turns; ++turn) {
        for (Variant& variant : variants) {
          c.options.tuning.partial_out = variant.format;
          variant.way->set(c.options.tuning);
          c.fit_workspace();
          add_times([&] { c.forward(); }, 20 / turns, variant.forward);
          add_times([&] { c.backward(); }, 20 / turns, variant.backward);
        }
      }
      for (const Variant& variant : variants) {
        const Timing forward = timing_of(variant.forward);
        const Timing backward = timing_of(variant.backward);
        std::printf("%7d %9s %8s | %7.3f (%.3f-%.3f) | %7.3f (%.3f-%.3f) | %7.3f | %s\n", sequence,
                    names[part], variant.format == PartialFormat::kPacked ? "packed" : "bf16",
                    forward.median, forward.low, forward.high, backward.median, backward.low,
                    backward.high, forward.median + backward.median, variant.way->name.c_str());
        std::fflush(stdout);
      }
    }
  }
  return 0;
}

int run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  std::vector<int> sequences;
  CheckOptions wanted;
  CaseOptions given;
  given.shape = {1, 0, 2};
  std::vector<PartialFormat> formats = {given.tuning.partial_out};
  std::vector<Way> ways = ways_of("default");
  int first_part = 0;
  int past_part = 4;
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--whole") {
      past_part = 1;
    } else if (argument == "--selected") { // alone
      first_part = 1;
      past_part = 2;
    } else if (argument == "--portable") {
      wanted.portable = true;
    } else if (argument == "--partials" && i + 1 < argc) {
      formats = partial_formats(argv[++i]);
      if (formats.empty() || (formats.size() > 1 && mode != "bench")) {
        std::fprintf(stderr, "--partials takes bf16 or packed, in bench also bf16,packed\n");
        return 2;
      }
    } else if (argument == "--ways" && i + 1 < argc) {
      ways = ways_of(argv[++i]);
      if (ways.empty() || (ways.size() > 1 && mode != "bench")) {
        std::fprintf(
            stderr,
            "--ways takes default, overlap, beside62x4, rows65536 or names joined by +; in bench "
            "several after commas\n");
        return 2;
      }
    } else if (argument == "--seconds" && i + 1 < argc) {
      wanted.seconds = std::atof(argv[++i]);
    } else if (argument == "--match" && i + 1 < argc) {
      wanted.match = argv[++i];
    } else if (argument == "--without" && i + 1 < argc) {
      wanted.without = argv[++i];
    } else if (argument == "--heads" && i + 1 < argc) {
      given.shape.heads = std::clamp(std::atoi(argv[++i]), 1, kMostHeads);
    } else if (argument == "--batch" && i + 1 < argc) {
      given.shape.batch = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--groups" && i + 1 < argc) {
      given.shape.groups = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--given") {
      given.selection = Selection::kDoubled;
    } else if (argument == "--head-dim" && i + 1 < argc) {
      given.shape.head_dim = std::atoi(argv[++i]);
    } else if (argument == "--query-major" && i + 1 < argc) {
      given.tuning.query_major_tokens = std::atoi(argv[++i]);
    } else {
      sequences.push_back(std::atoi(argv[i]));
    }
  }
  given.tuning.family = family_of(given.shape, wanted.portable);
  given.tuning.partial_out = formats.front();
  wanted.partials = formats.front();
  wanted.way = ways.front();
  wanted.way.set(given.tuning);
  if (mode == "check") return check_all(wanted);
  if (mode == "layers") {
    const int failed = check_layer_kernels();
    time_layer_kernels(32768);
    return failed == 0 ? 0 : 1;
  }
  if (mode == "long" && sequences.size() == 1) {
    given.shape.sequence = sequences[0];
    return run_case("long", given) ? 0 : 1;
  }
  if (mode == "repeat" && sequences.size() == 2) return repeat(given, sequences[0], sequences[1]);
  if (mode == "bench" && !sequences.empty())
    return bench(sequences, given, formats, ways, first_part, past_part);
  if (mode == "documents" && sequences.size() <= 1)
    return time_documents(sequences.empty() ? 32768 : sequences[0], given);
  if (mode == "intervals" && !sequences.empty()) {
    for (const int sequence : sequences)
      time_interval_kernels(sequence, given.shape.heads);
    return 0;
  }
  if (mode == "selection" && !sequences.empty()) {
    for (const int sequence : sequences)
      time_selection(sequence, given);
    return 0;
  }
  if (mode == "once" && (sequences.size() == 1 || sequences.size() == 2)) {
    const int tokens = sequences.size() == 2 ? sequences[1] : 32768;
    given.shape.batch = std::max(given.shape.batch, tokens / sequences[0]);
    given.shape.sequence = sequences[0];
    AttentionCase c(part_of(given, first_part));
    choose_blocks(c);
    c.forward();
    c.backward();
    cuda_check(cudaDeviceSynchronize(), "once");
    return 0;
  }
  std::fprintf(
      stderr,
      "usage: nsa-kernel-check check [--seconds N] [--match TEXT] [--without TEXT] | layers | long "
      "S | repeat S N | bench S [S ...] "
      "| intervals S [S ...] | selection S [S ...] | documents [tokens] | once S [tokens]\n"
      "       bench, documents, long, once and repeat take --query-major TOKENS, --heads N, "
      "--groups N, "
      "--head-dim N; long and repeat --batch N; once --given; all "
      "--portable and --partials bf16|packed, bench also bf16,packed, and --ways; "
      "bench --whole; bench and once --selected\n");
  return 2;
}

} // namespace
} // namespace nsa::kernels::check

int main(int argc, char** argv) {
  try {
    return nsa::kernels::check::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
