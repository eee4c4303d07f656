#pragma once
// One attention problem on the device with every buffer that the fused kernels take, poisoned
// before use.

#include <cuda_bf16.h>

#include <string>
#include <vector>

#include "bench/kernel_cases/device.h"
#include "nsa_model/kernels/fused/fused.h"

namespace nsa::kernels::check {

enum class Selection {
  kScored,   // by launch_selection
  kGiven,    // the caller copies indices that launch_selection made
  kRandom,   // any causal blocks, the own one included
  kHotBlock, // as kRandom, but every token takes block 0 and its neighbours take the same blocks
  // As kRandom, but not as launch_selection would write it:
  kSomeEmpty,       // rows, and whole tiles of them, without a block
  kFirstSlotsEmpty, // the last ones filled
  kDoubled,         // blocks twice and more
  kFuture,          // blocks behind the token's own, and nothing else in some rows
  kOutOfRange,      // blocks that no sequence has, the largest and smallest integers among them
  kAnyOrder,
};

struct CaseOptions {
  AttentionShape shape;
  Selection selection = Selection::kScored;
  float query_deviation = 1.0f; // large: one-hot probabilities
  float key_deviation = 1.0f;   // 0: all scores equal
  uint64_t seed = 1;
  bool zero_gates = false; // every seventh gate is 0
  FusedTuning tuning;
  bool branch_on[kBranches] = {true, true, true};
};

struct AttentionCase {
  explicit AttentionCase(const CaseOptions& options);

  float scale() const; // of q . k
  FusedInputs inputs() const;
  FusedSaved saved() const;
  FusedGradients gradients() const;
  void forward(cudaStream_t stream = nullptr);
  void backward(cudaStream_t stream = nullptr);
  void poison();        // everything that the kernels write
  void fit_workspace(); // makes room for what options.tuning needs

  // Every result of forward and backward with a hash of its bits. Waits for the device.
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
  DeviceBuffer<int32_t> given; // where blocks are given, else empty
  DeviceBuffer<int32_t> indices;
  // What the oracles select by.
  const DeviceBuffer<int32_t>& selected() const { return given.size() > 0 ? given : indices; }
  DeviceBuffer<char> lists, workspace;
};

} // namespace nsa::kernels::check
