#include "tests/gpu/kernels/sampled_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "bench/kernel_cases/case_options.h"
#include "nsa_model/kernels/common/key_range.cuh"
#include "tests/gpu/kernels/oracle.h"
#include "tests/gpu/kernels/report.h"
#include "tests/gpu/kernels/selection_check.h"

namespace nsa::kernels::check {
namespace {

// The same tolerances as for all rows (attention_checks.cpp).
constexpr double kOutputTolerance = 0.005;
constexpr double kGradientTolerance = 0.01;
constexpr int kTokens = 1500, kScoredTokens = 150, kKeys = 120;

using Values = std::vector<double>;

double to_double(float value) {
  return value;
}
double to_double(__nv_bfloat16 value) {
  return static_cast<double>(__bfloat162float(value));
}

// Returns rows of `width` elements.
template <typename T>
Values rows_of(const DeviceBuffer<T>& all, const std::vector<int32_t>& rows, std::size_t width) {
  std::vector<T> row(width);
  Values values;
  for (const int32_t which : rows) {
    cuda_check(cudaMemcpy(row.data(), all.get() + static_cast<std::size_t>(which) * width,
                          width * sizeof(T), cudaMemcpyDeviceToHost),
               "a row");
    for (const T value : row)
      values.push_back(to_double(value));
  }
  return values;
}

ErrorNorm error_of(const Values& found, const Values& exact) {
  ErrorNorm norm;
  double difference = 0.0, size = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (std::isinf(exact[i]) && found[i] == exact[i]) continue; // the log-sum of a row without keys
    if (!std::isfinite(found[i])) ++norm.invalid;
    difference += (found[i] - exact[i]) * (found[i] - exact[i]);
    size += exact[i] * exact[i];
  }
  norm.relative = std::sqrt(size > 0.0 ? difference / size : difference);
  return norm;
}

// Returns ascending numbers: some first ones, some last ones, and random ones between them.
std::vector<int32_t> sample(int count, int of, uint64_t seed) {
  std::set<int32_t> chosen;
  std::mt19937_64 random(seed);
  for (int i = 0; i < count / 8; ++i) {
    chosen.insert(std::min(i, of - 1));
    chosen.insert(std::max(0, of - 1 - i));
  }
  while (static_cast<int>(chosen.size()) < std::min(count, of))
    chosen.insert(static_cast<int32_t>(random() % static_cast<uint64_t>(of)));
  return {chosen.begin(), chosen.end()};
}

DeviceBuffer<int32_t> on_device(const std::vector<int32_t>& values) {
  DeviceBuffer<int32_t> buffer(values.size());
  buffer.from_host(values);
  return buffer;
}

class SampledCase {
public:
  SampledCase(const std::string& name, const CaseOptions& options)
      : report_(title_of(name, options)), c_(options), shape_(options.shape),
        heads_(static_cast<std::size_t>(shape_.groups * shape_.heads)),
        dim_(static_cast<std::size_t>(shape_.head_dim)),
        tokens_(sample(kTokens, shape_.sequence, 7)), token_list_(on_device(tokens_)) {}

  bool run() {
    c_.forward();
    cuda_check(cudaDeviceSynchronize(), "forward");
    c_.workspace.poison();
    c_.backward();
    cuda_check(cudaDeviceSynchronize(), "backward");
    d_out_ = rows_of(c_.d_out, tokens_, heads_ * dim_);
    gates_ = rows_of(c_.gates, tokens_, heads_ * 3);
    out_.assign(d_out_.size(), 0.0);
    d_q_.assign(d_out_.size(), 0.0);
    d_gates_.assign(gates_.size(), 0.0);
    for (int branch = 0; branch < kBranches; ++branch)
      judge_branch(branch);
    report_.verdict("out", error_of(rows_of(c_.out, tokens_, heads_ * dim_), out_),
                    kOutputTolerance);
    report_.verdict("dq", error_of(rows_of(c_.d_q, tokens_, heads_ * dim_), d_q_),
                    kGradientTolerance);
    report_.verdict("dgates", error_of(rows_of(c_.d_gates, tokens_, heads_ * 3), d_gates_),
                    kOutputTolerance);
    return report_.finish();
  }

private:
  OracleParams oracle_of(int branch) const {
    OracleParams params;
    params.shape = shape_;
    params.branch = static_cast<Branch>(branch);
    params.scale = static_cast<double>(c_.scale());
    params.q = c_.q.get();
    params.k = branch == 0 ? c_.k_cmp.get() : c_.k[branch].get();
    params.v = branch == 0 ? c_.v_cmp.get() : c_.v[branch].get();
    params.indices = c_.selected().get();
    params.d_out = c_.d_out.get();
    params.gates = c_.gates.get();
    params.some_tokens = token_list_.get();
    params.some_token_count = static_cast<int>(tokens_.size());
    params.row_lse = c_.branch_lse[branch].get();
    params.row_out = c_.branch_out[branch].get();
    return params;
  }

  void judge_branch(int branch) {
    const char* names[kBranches][4] = {{"o_cmp", "lse_cmp", "dk_cmp", "dv_cmp"},
                                       {"o_slc", "lse_slc", "dk_slc", "dv_slc"},
                                       {"o_win", "lse_win", "dk_win", "dv_win"}};
    // The keys whose gradients are compared. In the compressed branch these are the one or two
    // compressed keys that contain each sampled token.
    const std::vector<int32_t> wanted = sample(kKeys, shape_.sequence, 8);
    std::vector<int32_t> keys = wanted;
    if (branch == 0) {
      std::set<int32_t> holding;
      for (const int32_t token : wanted)
        for (const int32_t key : holding_keys(token))
          holding.insert(key);
      keys.assign(holding.begin(), holding.end());
    }
    const DeviceBuffer<int32_t> key_list = on_device(keys);
    const std::size_t width = static_cast<std::size_t>(shape_.groups) * dim_;
    DeviceBuffer<double> out(tokens_.size() * heads_ * dim_), lse(tokens_.size() * heads_),
        d_q(out.size()), d_k(keys.size() * width), d_v(keys.size() * width);
    OracleParams params = oracle_of(branch);
    params.some_keys = key_list.get();
    params.some_key_count = static_cast<int>(keys.size());
    params.out = out.get();
    params.lse = lse.get();
    params.d_q = d_q.get();
    params.d_k = d_k.get();
    params.d_v = d_v.get();
    cuda_check(launch_oracle_forward(params, nullptr), "oracle forward");
    cuda_check(launch_oracle_backward(params, nullptr), "oracle backward");
    const Values exact = out.to_host();
    report_.verdict(names[branch][0],
                    error_of(rows_of(c_.branch_out[branch], tokens_, heads_ * dim_), exact),
                    kOutputTolerance);
    report_.verdict(names[branch][1],
                    error_of(rows_of(c_.branch_lse[branch], tokens_, heads_), lse.to_host()), 1e-4);
    report_.verdict(names[branch][2],
                    error_of(rows_of(c_.d_k[branch], wanted, width),
                             of_tokens(d_k.to_host(), branch, wanted, keys, width)),
                    kGradientTolerance);
    report_.verdict(names[branch][3],
                    error_of(rows_of(c_.d_v[branch], wanted, width),
                             of_tokens(d_v.to_host(), branch, wanted, keys, width)),
                    kGradientTolerance);
    const Values branch_d_q = d_q.to_host();
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const std::size_t gate = i / dim_ * 3 + static_cast<std::size_t>(branch);
      out_[i] += gates_[gate] * exact[i];
      d_q_[i] += branch_d_q[i];
      d_gates_[gate] += exact[i] * d_out_[i];
    }
    if (branch == 0) judge_selection(lse);
  }

  // Returns the compressed keys that contain a token.
  std::vector<int32_t> holding_keys(int32_t token) const {
    std::vector<int32_t> keys;
    for (const int32_t key : {token / kCompressStride - 1, token / kCompressStride})
      if (key >= 0 && key < compressed_count(shape_.sequence)) keys.push_back(key);
    return keys;
  }
  Values of_tokens(const Values& of_keys, int branch, const std::vector<int32_t>& tokens,
                   const std::vector<int32_t>& keys, std::size_t width) const {
    if (branch != 0) return of_keys;
    std::map<int32_t, std::size_t> place;
    for (std::size_t i = 0; i < keys.size(); ++i)
      place[keys[i]] = i;
    Values fine(tokens.size() * width, 0.0);
    for (std::size_t t = 0; t < tokens.size(); ++t)
      for (const int32_t key : holding_keys(tokens[t]))
        for (std::size_t i = 0; i < width; ++i)
          fine[t * width + i] += of_keys[place.at(key) * width + i] / kCompressLength;
    return fine;
  }

  void judge_selection(const DeviceBuffer<double>& lse) {
    const int blocks = block_count(shape_.sequence);
    const auto groups = static_cast<std::size_t>(shape_.groups);
    DeviceBuffer<double> scores(groups * static_cast<std::size_t>(blocks));
    SelectionJudge judge;
    const std::size_t step = std::max<std::size_t>(1, tokens_.size() / kScoredTokens);
    for (std::size_t i = 0; i < tokens_.size(); i += step) {
      const int32_t token = tokens_[i];
      OracleScoresParams params;
      params.shape = shape_;
      params.scale = static_cast<double>(c_.scale());
      params.q = c_.q.get();
      params.k_cmp = c_.k_cmp.get();
      // Log-sums are stored by sample, but the oracle uses row numbers of the sequence.
      params.lse = lse.get() + (static_cast<int64_t>(i) - token) * static_cast<int64_t>(heads_);
      params.first_row = int64_t{token} * shape_.groups;
      params.rows = shape_.groups;
      params.scores = scores.get();
      cuda_check(launch_oracle_scores(params, nullptr), "oracle scores");
      const Values of_row = scores.to_host();
      std::vector<int32_t> slots(groups * kSlots);
      cuda_check(cudaMemcpy(slots.data(), c_.indices.get() + params.first_row * kSlots,
                            slots.size() * sizeof(int32_t), cudaMemcpyDeviceToHost),
                 "indices");
      for (std::size_t group = 0; group < groups; ++group)
        judge.add(&slots[group * kSlots], &of_row[group * static_cast<std::size_t>(blocks)], token,
                  blocks, false);
    }
    judge.tell(report_);
  }

  Report report_;
  AttentionCase c_;
  const AttentionShape shape_;
  const std::size_t heads_, dim_;
  const std::vector<int32_t> tokens_;
  const DeviceBuffer<int32_t> token_list_;
  Values d_out_, gates_;       // of the sampled tokens
  Values out_, d_q_, d_gates_; // exact
};

} // namespace

bool run_sampled_case(const std::string& name, const CaseOptions& options) {
  return SampledCase(name, options).run();
}

} // namespace nsa::kernels::check
