// Context parallelism: the ranks of a group share each sequence, of which rank r of n holds the
// r-th part. Everything but attention needs its own tokens alone. Before attention, an all-to-all
// gives each rank some KV groups of all tokens; behind it, a second one gives each rank all heads
// of its own tokens again (DeepSpeed-Ulysses, arXiv 2309.14509). So attention is computed as on one
// rank, with fewer KV groups.
//
// One thread at a time calls this, on all ranks of the group in the same order. Wrong shapes throw
// c10::Error. What all_to_all() throws reaches the caller of loss() or backward().
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace nsa::model {

struct ContextGroup {
  int64_t rank = 0, size = 1;
  // chunks: [size, bytes] uint8, contiguous. Row i goes to rank i of the group, and row i of the
  // result, which is like `chunks`, came from there.
  std::function<at::Tensor(const at::Tensor& chunks)> all_to_all;

  // This rank's part of x [.., S] along its last dimension.
  at::Tensor part_of(const at::Tensor& x) const;
};
using SharedGroup = std::shared_ptr<const ContextGroup>;

// Each [B, S / n, N, ...] with N divisible by n -> [B, S, N / n, ...], and back. With autograd, in
// one exchange for all of them.
std::vector<at::Tensor> to_whole_sequence(const std::vector<at::Tensor>& parts,
                                          const SharedGroup& group);
at::Tensor to_all_heads(const at::Tensor& whole, const SharedGroup& group);

} // namespace nsa::model
