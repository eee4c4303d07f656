#include "tests/gpu/kernels/rerun_checks.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/kernel_cases/case_options.h"
#include "tests/gpu/kernels/report.h"

namespace nsa::kernels::check {
namespace {

// The forward's results for each token of a batch of one. Tokens are stored one after another.
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
    // They depend on lse_cmp, and o_slc depends on them.
    if (branch == 0) keep("indices", c.indices);
  }
  keep("out", c.out);
  return all;
}

} // namespace

bool run_claims_case(const CaseOptions& options) {
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
  return report.finish();
}

bool run_future_case(const CaseOptions& options) {
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
  return report.finish();
}

bool run_graph_case(const std::string& name, const CaseOptions& options) {
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
  return report.finish();
}

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

} // namespace nsa::kernels::check
