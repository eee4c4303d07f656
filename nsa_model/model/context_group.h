// Context parallelism: the ranks of a group share each sequence, and rank r of n holds the r-th
// part. Everything except attention needs only its own tokens. Before attention, an all-to-all
// gives each rank some KV groups of all tokens. After attention, a second one returns to each rank
// all heads of its own tokens (DeepSpeed-Ulysses, arXiv 2309.14509). So attention runs as on one
// rank, with fewer KV groups.
//
// One thread at a time calls these functions, on all ranks of the group in the same order. Wrong
// shapes throw c10::Error. Exceptions of the exchange reach the caller of loss() or backward().
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace nsa::model {

struct ContextGroup {
  int64_t rank = 0, size = 1;
  // Begins to exchange rows with the other ranks of the group. out and in: [size - 1, bytes] uint8,
  // contiguous, a row for each other rank in order. The result waits: until it returns, the caller
  // must not change `out` or use `in`.
  std::function<std::function<void()>(const at::Tensor& out, const at::Tensor& in)> all_to_all;

  // Returns this rank's part of x [.., S] along its last dimension.
  at::Tensor part_of(const at::Tensor& x) const;
};
using SharedGroup = std::shared_ptr<const ContextGroup>;

// to_whole_sequence turns each [B, S / n, N, ...] into [B, S, N / n, ...]; N must be divisible by
// n. to_all_heads does the reverse. Both support autograd and exchange all tensors at once.
std::vector<at::Tensor> to_whole_sequence(const std::vector<at::Tensor>& parts,
                                          const SharedGroup& group);
at::Tensor to_all_heads(const at::Tensor& whole, const SharedGroup& group);

} // namespace nsa::model
