#include "tests/gpu/kernels/attention_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "bench/kernel_cases/case_options.h"
#include "bench/kernel_cases/causal_case.h"
#include "tests/gpu/kernels/branch_oracle.h"
#include "tests/gpu/kernels/documents_case.h"
#include "tests/gpu/kernels/reference_case.h"
#include "tests/gpu/kernels/report.h"
#include "tests/gpu/kernels/selection_check.h"

namespace nsa::kernels::check {
namespace {

// Root mean square error relative to float64, of outputs and gradients. Rounding a result to BF16
// alone gives 0.17 %.
constexpr double kOutputTolerance = 0.005;
constexpr double kGradientTolerance = 0.01;

float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

// Compares pooled keys with float64 on the CPU.
ErrorNorm pooling_error(const std::vector<__nv_bfloat16>& fine,
                        const std::vector<__nv_bfloat16>& pooled, const AttentionShape& shape) {
  const std::size_t width = static_cast<std::size_t>(shape.groups) * shape.head_dim;
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

// The float64 gradient of pooling, computed on the CPU.
std::vector<double> unpool(const std::vector<double>& pooled, const AttentionShape& shape) {
  const std::size_t width = static_cast<std::size_t>(shape.groups) * shape.head_dim;
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

double relative_error(const std::vector<double>& value, const std::vector<double>& exact) {
  double difference = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    difference += std::pow(value[i] - exact[i], 2);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(difference / norm);
}

// Judges one branch's output, log-sums, and gradients of keys and values.
void judge_branch(const AttentionCase& c, int branch, const BranchOracle& oracle, Report& report) {
  const char* names[kBranches][5] = {{"o_cmp", "lse_cmp", "dk_cmp", "dv_cmp", "dgate_cmp"},
                                     {"o_slc", "lse_slc", "dk_slc", "dv_slc", "dgate_slc"},
                                     {"o_win", "lse_win", "dk_win", "dv_win", "dgate_win"}};
  const auto dim = static_cast<std::size_t>(c.options.shape.head_dim);
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
    fine_k.from_host(unpool(oracle.d_k.to_host(), c.options.shape));
    fine_v.from_host(unpool(oracle.d_v.to_host(), c.options.shape));
    d_k.parts[0] = fine_k.get();
    d_v.parts[0] = fine_v.get();
  }
  // If all keys are equal, dK is a difference of equal numbers. Only its size is judged, because
  // its norm is rounding error.
  const bool degenerate = c.options.key_deviation == 0.0f;
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

// d_gate = <d_out, o_branch>, computed with o as the kernels rounded it.
void judge_gate_gradients(const AttentionCase& c, const std::vector<BranchOracle>& oracles,
                          Report& report) {
  const auto dim = static_cast<std::size_t>(c.options.shape.head_dim);
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
      if (!c.options.branch_on[branch]) expected = 0.0;
      const double error = got[row * 3 + static_cast<std::size_t>(branch)] - expected;
      if (!std::isfinite(error)) ++norm.invalid;
      difference += error * error;
      size += expected * expected;
    }
  }
  norm.relative = std::sqrt(difference / size);
  report.verdict("dgates", norm, kOutputTolerance);
}

} // namespace

bool run_case(const std::string& name, const CaseOptions& options) {
  const auto dim = static_cast<std::size_t>(options.shape.head_dim);
  Report report(title_of(name, options));
  AttentionCase c(options);
  choose_blocks(c);
  c.forward();
  cuda_check(cudaDeviceSynchronize(), "forward");
  c.workspace.poison(); // the backward must not depend on what the forward left there
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
  for (int branch = 0; branch < kBranches; ++branch) {
    oracles.emplace_back(c, branch);
    const BranchOracle& oracle = oracles.back();
    if (!options.branch_on[branch]) continue;
    gated_out.parts[branch] = oracle.out.get();
    d_q.parts[branch] = oracle.d_q.get();
    judge_branch(c, branch, oracle, report);
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
  judge_gate_gradients(c, oracles, report);
  if (options.selection == Selection::kScored && options.branch_on[1])
    check_selection(c, oracles[0], report);

  // A second run with poisoned buffers gives the same bits.
  const auto first = c.hashes();
  c.poison();
  c.forward();
  c.workspace.poison();
  c.backward();
  expect_same(first, c.hashes(), "the second run", report);
  return report.finish();
}

bool run_causal_case(const CaseOptions& options) {
  const auto dim = static_cast<std::size_t>(options.shape.head_dim);
  Report report(title_of("causal over everything", options));
  CausalCase causal(options);
  const AttentionCase& c = causal.buffers;
  const auto run = [&] {
    causal.forward();
    cuda_check(cudaDeviceSynchronize(), "forward");
    causal.workspace.poison(); // the backward must not depend on old contents
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
  return report.finish();
}

bool run_reference_case(const std::string& name, const CaseOptions& options) {
  Report report(title_of(name + " by the CPU oracle", options));
  for (const NamedError& error : compare_with_reference(options)) {
    ErrorNorm norm;
    norm.relative = error.relative;
    norm.invalid = std::isfinite(error.relative) ? 0 : 1;
    report.verdict(error.name, norm, error.gradient ? kGradientTolerance : kOutputTolerance);
  }
  return report.finish();
}

bool run_documents_case(const std::string& name, const DocumentsOptions& options) {
  Report report(title_of(name, options.attention));
  for (const std::string& failure : compare_with_alone(options))
    report.expect(failure, false);
  return report.finish();
}

} // namespace nsa::kernels::check
