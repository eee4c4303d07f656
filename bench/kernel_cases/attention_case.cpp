#include "bench/kernel_cases/attention_case.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>

#include "bench/kernel_cases/measure.h"

namespace nsa::kernels::check {
namespace {

// Random causal blocks of every token; ascending, then -1. Token 5 of each sequence keeps only its
// own block if possible, so that short lists occur.
std::vector<int32_t> random_indices(const CaseOptions& options) {
  const AttentionShape& shape = options.shape;
  std::mt19937_64 random(options.seed);
  std::vector<int32_t> indices(
      static_cast<std::size_t>(shape.batch) * shape.sequence * shape.groups * kSlots, -1);
  std::vector<int32_t> shared;
  std::vector<int32_t> blocks;
  for (std::size_t row = 0; row < indices.size() / kSlots; ++row) {
    const int token = static_cast<int>(row / shape.groups % shape.sequence);
    const int own = token / kBlock;
    blocks.clear();
    if (options.selection == Selection::kHotBlock && token % kBlock != 0 && token > 0) {
      blocks = shared;
      blocks.resize(std::min<std::size_t>(blocks.size(), 16));
    } else {
      for (int block = 0; block < own; ++block)
        blocks.push_back(block);
      std::shuffle(blocks.begin(), blocks.end(), random);
      blocks.resize(std::min<std::size_t>(blocks.size(), kSlots - 2));
      blocks.push_back(own);
      if (own > 0 && options.selection == Selection::kHotBlock) blocks.push_back(0);
      if (token % 97 == 5) blocks.assign(1, own);
    }
    std::sort(blocks.begin(), blocks.end());
    blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
    if (token % kBlock == 0) shared = blocks;
    std::copy(blocks.begin(), blocks.end(),
              indices.begin() + static_cast<std::ptrdiff_t>(row) * kSlots);
  }
  return indices;
}

// Changes rows of ascending blocks as the selection mode requires.
void spoil(const CaseOptions& options, std::vector<int32_t>& indices) {
  const AttentionShape& shape = options.shape;
  std::mt19937_64 random(options.seed + 1);
  for (std::size_t row = 0; row < indices.size() / kSlots; ++row) {
    const int token = static_cast<int>(row / shape.groups % shape.sequence);
    const int own = token / kBlock;
    const auto slots = indices.begin() + static_cast<std::ptrdiff_t>(row) * kSlots;
    const auto each = [&](auto change) {
      for (int i = 0; i < kSlots; ++i)
        change(i, slots[i]);
    };
    switch (options.selection) {
    case Selection::kSomeEmpty:
      if (token % 3 == 0 || own % 4 == 1) std::fill_n(slots, kSlots, -1);
      break;
    case Selection::kFirstSlotsEmpty:
      std::rotate(slots, slots + kSlots - 3, slots + kSlots);
      std::fill_n(slots, 3, -1);
      break;
    case Selection::kDoubled: // empty slots repeat the first block
      each([&](int i, int32_t& block) {
        block = block < 0 || token % 5 == 0 ? slots[0] : slots[i - i % (2 + token % 3)];
      });
      break;
    case Selection::kFuture:
      each([&](int i, int32_t& block) {
        if (i % 3 == 1 || token % 7 == 0) block = own + 1 + (i + token) % 5;
      });
      break;
    case Selection::kOutOfRange:
      each([&](int i, int32_t& block) {
        const int32_t none[] = {INT32_MAX, INT32_MIN, 1 << 20, -2, block_count(shape.sequence)};
        if (i % 3 == 1 || token % 11 == 0) block = none[(i + token) % 5];
      });
      break;
    case Selection::kAnyOrder:
      std::shuffle(slots, slots + kSlots, random);
      break;
    default:
      break;
    }
  }
}

} // namespace

AttentionCase::AttentionCase(const CaseOptions& case_options) : options(case_options) {
  const AttentionShape& shape = options.shape;
  const std::size_t group_rows =
      static_cast<std::size_t>(shape.batch) * shape.sequence * shape.groups;
  rows = group_rows * static_cast<std::size_t>(shape.heads);
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  key_count = group_rows * dim;
  cmp_count =
      static_cast<std::size_t>(shape.batch) * compressed_count(shape.sequence) * shape.groups * dim;
  for (DeviceBuffer<__nv_bfloat16>* buffer : {&q, &d_out, &out, &d_q}) {
    *buffer = DeviceBuffer<__nv_bfloat16>(rows * dim);
  }
  fill_normal(q.get(), q.size(), options.query_deviation, options.seed * 16);
  fill_normal(d_out.get(), d_out.size(), options.gradient_deviation, options.seed * 16 + 1);
  for (int branch = 0; branch < kBranches; ++branch) {
    for (DeviceBuffer<__nv_bfloat16>* buffer :
         {&k[branch], &v[branch], &d_k[branch], &d_v[branch]}) {
      *buffer = DeviceBuffer<__nv_bfloat16>(key_count);
    }
    branch_out[branch] = DeviceBuffer<__nv_bfloat16>(rows * dim);
    branch_lse[branch] = DeviceBuffer<float>(rows);
    // Means of 32 independent keys are small; larger ones keep the compressed scores spread.
    const float deviation = options.key_deviation * (branch == 0 ? 4.0f : 1.0f);
    fill_normal(k[branch].get(), key_count, deviation, options.seed * 16 + 2 + 2 * branch);
    fill_normal(v[branch].get(), key_count, 1.0f, options.seed * 16 + 3 + 2 * branch);
  }
  k_cmp = DeviceBuffer<__nv_bfloat16>(std::max<std::size_t>(cmp_count, 1));
  v_cmp = DeviceBuffer<__nv_bfloat16>(std::max<std::size_t>(cmp_count, 1));
  gates = DeviceBuffer<float>(rows * 3);
  d_gates = DeviceBuffer<float>(rows * 3);
  fill_uniform(gates.get(), gates.size(), 0.05f * options.gate_scale, options.gate_scale,
               options.seed * 16 + 9);
  if (options.zero_gates) {
    std::vector<float> host = gates.to_host();
    for (std::size_t i = 0; i < host.size(); i += 7)
      host[i] = 0.0f;
    gates.from_host(host);
  }
  indices = DeviceBuffer<int32_t>(group_rows * kSlots);
  if (options.selection != Selection::kScored && options.selection != Selection::kGiven) {
    std::vector<int32_t> blocks = random_indices(options);
    spoil(options, blocks);
    given = DeviceBuffer<int32_t>(blocks.size());
    given.from_host(blocks);
  }
  lists = DeviceBuffer<char>(fused_list_bytes(shape));
  fit_workspace();
}

void AttentionCase::fit_workspace() {
  const std::size_t bytes =
      std::max(fused_forward_workspace_bytes(inputs()), fused_backward_workspace_bytes(inputs()));
  if (workspace.size() < bytes) workspace = DeviceBuffer<char>(bytes);
}

float AttentionCase::scale() const {
  return 1.0f / std::sqrt(static_cast<float>(options.shape.head_dim));
}

FusedInputs AttentionCase::inputs() const {
  FusedInputs inputs;
  inputs.shape = options.shape;
  inputs.tuning = options.tuning;
  inputs.scale = scale();
  inputs.q = q.get();
  for (int branch = 0; branch < kBranches; ++branch) {
    inputs.k[branch] =
        options.branch_on[branch] ? (branch == 0 ? k_cmp.get() : k[branch].get()) : nullptr;
    inputs.v[branch] = branch == 0 ? v_cmp.get() : v[branch].get();
  }
  inputs.pool_k = k[0].get();
  inputs.pool_v = v[0].get();
  inputs.gates = gates.get();
  inputs.given_indices = given.get();
  inputs.selection_made = options.selection == Selection::kGiven;
  return inputs;
}

FusedSaved AttentionCase::saved() const {
  FusedSaved saved;
  for (int branch = 0; branch < kBranches; ++branch) {
    saved.branch_out[branch] = branch_out[branch].get();
    saved.branch_lse[branch] = branch_lse[branch].get();
  }
  saved.indices = indices.get();
  saved.lists = lists.get();
  return saved;
}

FusedGradients AttentionCase::gradients() const {
  FusedGradients gradients;
  gradients.d_out = d_out.get();
  gradients.d_q = d_q.get();
  for (int branch = 0; branch < kBranches; ++branch) {
    gradients.d_k[branch] = d_k[branch].get();
    gradients.d_v[branch] = d_v[branch].get();
  }
  gradients.d_gates = d_gates.get();
  return gradients;
}

void AttentionCase::forward(cudaStream_t stream) {
  cuda_check(launch_fused_forward(inputs(), saved(), out.get(), workspace.get(), stream),
             "fused forward");
}
void AttentionCase::backward(cudaStream_t stream) {
  cuda_check(launch_fused_backward(inputs(), saved(), gradients(), workspace.get(), stream),
             "fused backward");
}

std::vector<AttentionCase::Hash> AttentionCase::hashes() const {
  struct Result {
    std::string name;
    const void* data;
    std::size_t bytes;
  };
  const auto result = [](std::string name, const auto& buffer) {
    return Result{std::move(name), buffer.get(), buffer.size() * sizeof(*buffer.get())};
  };
  std::vector<Result> results = {result("out", out), result("d_q", d_q),
                                 result("d_gates", d_gates)};
  if (options.branch_on[1]) results.push_back(result("indices", indices));
  if (options.branch_on[0]) {
    results.push_back({"k~", k_cmp.get(), cmp_count * sizeof(__nv_bfloat16)});
    results.push_back({"v~", v_cmp.get(), cmp_count * sizeof(__nv_bfloat16)});
  }
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!options.branch_on[branch]) continue;
    const std::string of = std::to_string(branch);
    results.push_back(result("o " + of, branch_out[branch]));
    results.push_back(result("lse " + of, branch_lse[branch]));
    results.push_back(result("d_k " + of, d_k[branch]));
    results.push_back(result("d_v " + of, d_v[branch]));
  }
  DeviceBuffer<unsigned long long> sums(results.size());
  sums.from_host(std::vector<unsigned long long>(results.size(), 0));
  for (std::size_t i = 0; i < results.size(); ++i)
    add_hash(results[i].data, results[i].bytes / 4, sums.get() + i);
  const std::vector<unsigned long long> values = sums.to_host();
  std::vector<Hash> hashes;
  for (std::size_t i = 0; i < results.size(); ++i)
    hashes.push_back({results[i].name, values[i]});
  return hashes;
}

void AttentionCase::poison() {
  out.poison();
  d_q.poison();
  for (int branch = 0; branch < kBranches; ++branch) {
    branch_out[branch].poison();
    branch_lse[branch].poison();
    d_k[branch].poison();
    d_v[branch].poison();
  }
  k_cmp.poison();
  v_cmp.poison();
  d_gates.poison();
  if (options.selection != Selection::kGiven) indices.poison();
  lists.poison();
  workspace.poison();
}

} // namespace nsa::kernels::check
