#pragma once
// One attention problem on the device with every buffer of the fused kernels. Buffers are poisoned
// before use.

#include <cuda_bf16.h>

#include <string>
#include <vector>

#include "bench/kernel_cases/device.h"
#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels::check {

enum class Selection {
  kScored,   // launch_selection chooses
  kGiven,    // the caller copies indices that launch_selection made
  kRandom,   // any causal blocks, including the own one
  kHotBlock, // as kRandom, but every token takes block 0 and its neighbours take the same blocks
  // As kRandom, but launch_selection would never write them:
  kSomeEmpty,       // some rows, and whole tiles, have no block
  kFirstSlotsEmpty, // only the last slots are filled
  kDoubled,         // blocks occur twice or more
  kFuture,          // blocks after the token's own; some rows have nothing else
  kOutOfRange,      // blocks beyond every sequence, including the largest and smallest integers
  kAnyOrder,
};

struct CaseOptions {
  AttentionShape shape;
  Selection selection = Selection::kScored;
  float query_deviation = 1.0f; // a large value makes one-hot probabilities
  float key_deviation = 1.0f;   // 0 makes all scores equal
  uint64_t seed = 1;
  bool zero_gates = false; // every seventh gate is 0
  float gate_scale = 1.0f;
  float gradient_deviation = 1.0f; // of the output's gradient
  FusedTuning tuning;
  bool branch_on[kBranches] = {true, true, true};
};

struct AttentionCase {
  explicit AttentionCase(const CaseOptions& options);

  float scale() const; // factor of q . k
  FusedInputs inputs() const;
  FusedSaved saved() const;
  FusedGradients gradients() const;
  void forward(cudaStream_t stream = nullptr);
  void backward(cudaStream_t stream = nullptr);
  void poison();        // poisons everything that the kernels write
  void fit_workspace(); // allocates the workspace that options.tuning needs

  // Hashes of the bits of every result, forward and backward. Waits for the device.
  struct Hash {
    std::string name;
    unsigned long long value;
    bool operator==(const Hash&) const = default;
  };
  std::vector<Hash> hashes() const;

  CaseOptions options;
  std::size_t rows;      // batch * sequence * groups * heads
  std::size_t key_count; // elements of a K tensor
  std::size_t cmp_count; // elements of a compressed K tensor
  DeviceBuffer<__nv_bfloat16> q, d_out, out, d_q;
  DeviceBuffer<__nv_bfloat16> k[kBranches], v[kBranches], d_k[kBranches], d_v[kBranches];
  DeviceBuffer<__nv_bfloat16> k_cmp, v_cmp;
  DeviceBuffer<__nv_bfloat16> branch_out[kBranches];
  DeviceBuffer<float> branch_lse[kBranches], gates, d_gates;
  DeviceBuffer<int32_t> given; // given blocks; empty if blocks are not given
  DeviceBuffer<int32_t> indices;
  // The blocks that the oracles use.
  const DeviceBuffer<int32_t>& selected() const { return given.size() > 0 ? given : indices; }
  DeviceBuffer<char> lists, workspace;
};

} // namespace nsa::kernels::check
