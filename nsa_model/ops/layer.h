// The layers around attention as single operations with their own autograd: residual sum with
// RMSNorm, splitting the joined projections, the group gates, softmax cross-entropy of a chunk.
//
// `composed`: each operation is a few ATen operations here, on any device and dtype. For BF16 on
// CUDA, libnsa_ops_cuda.so computes each in one pass over memory. With `fused` = false operations
// are always composed. With true they use the device's kernels; on a CPU that is the same
// composition.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>
#include <vector>

namespace nsa::ops {

// sum = x + addend rounded to x's dtype (x itself without an addend). normed = gain * sum /
// sqrt(mean(sum^2) + epsilon), computed in FP32. x [..., C] and gain [C] share a dtype.
struct NormedSum {
  at::Tensor sum, normed;
};
NormedSum add_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& addend,
                       const at::Tensor& gain, double epsilon, bool fused);
// The same operation (fused, with an addend) from the sum that it returned. Results and gradients
// have the same bits.
NormedSum rms_norm_of_sum(const at::Tensor& sum, const at::Tensor& gain, double epsilon);

// Splits the joined projections [B, S, heads + sets * groups heads of D] into separate tensors: q
// [B, S, heads, D] and sets of groups [B, S, groups, D]. q and the first `rotated` sets are rotated
// by the tables as by rope(). mean [B, S, groups, D] is the mean query of each group before
// rotation; undefined unless wanted.
struct HeadCut {
  int64_t heads, groups, head_dimension, rotated;
  bool mean;
};
struct HeadSets {
  at::Tensor q, mean;
  std::vector<at::Tensor> sets;
};
HeadSets split_heads(const at::Tensor& joined, const at::Tensor& cos, const at::Tensor& sin,
                     const HeadCut& cut, bool fused);

// Gates [B, S, heads, branches] of every head, FP32 (FP64 for FP64): softmax(fc2 silu(fc1 m) /
// temperature), where m is the mean query of its group. mean [B, S, groups, D], fc1 [hidden, D] and
// fc2 [branches, hidden] share a dtype. The composition rounds between its products; the fused
// kernel does not.
at::Tensor group_gates(const at::Tensor& mean, const at::Tensor& fc1, const at::Tensor& fc2,
                       double temperature, int64_t heads, bool fused);

// weight * -log softmax(logits)[label] of each row, FP32 (FP64 for FP64) [N]. With `gradient` the
// logits [N, V] are overwritten by weight * (softmax - one_hot). labels [N] int64 in [0, V), weight
// [N] in the result's dtype. No autograd: the caller uses the gradient directly.
at::Tensor cross_entropy_(const at::Tensor& logits, const at::Tensor& labels,
                          const at::Tensor& weight, bool gradient, bool fused);

// The operations behind the functions with autograd. Each has a CUDA implementation as nsa::<name>.
namespace composed {
std::tuple<at::Tensor, at::Tensor, at::Tensor> // sum (empty without addend), normed, 1 / rms
add_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& addend, const at::Tensor& gain,
             double epsilon);
std::tuple<at::Tensor, at::Tensor> // gradients of x (equal to the addend's) and of the gain
add_rms_norm_backward(const at::Tensor& d_normed, const std::optional<at::Tensor>& d_sum,
                      const at::Tensor& sum, const at::Tensor& inverse, const at::Tensor& gain);
std::vector<at::Tensor> // q, the sets, and the mean if wanted
split_heads(const at::Tensor& joined, const at::Tensor& cos, const at::Tensor& sin, int64_t heads,
            int64_t groups, int64_t head_dimension, int64_t rotated, bool mean);
at::Tensor // gradient of joined; `grads` has the order of split_heads
split_heads_backward(at::TensorList grads, const at::Tensor& cos, const at::Tensor& sin,
                     int64_t rotated, bool mean);
at::Tensor group_gates(const at::Tensor& mean, const at::Tensor& fc1, const at::Tensor& fc2,
                       double temperature, int64_t heads);
std::tuple<at::Tensor, at::Tensor, at::Tensor> // gradients of mean, fc1, fc2
group_gates_backward(const at::Tensor& d_gates, const at::Tensor& gates, const at::Tensor& mean,
                     const at::Tensor& fc1, const at::Tensor& fc2, double temperature);
at::Tensor cross_entropy_(at::Tensor logits, const at::Tensor& labels, const at::Tensor& weight,
                          bool gradient);
} // namespace composed

// These functions throw c10::Error unless the arguments of those operations match each other.
// Arguments also come from Python, and the CUDA implementations do not check sizes again.
namespace checked {
void add_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& addend,
                  const at::Tensor& gain);
void add_rms_norm_backward(const at::Tensor& d_normed, const std::optional<at::Tensor>& d_sum,
                           const at::Tensor& sum, const at::Tensor& inverse,
                           const at::Tensor& gain);
void split_heads(const at::Tensor& joined, const at::Tensor& cos, const at::Tensor& sin,
                 int64_t heads, int64_t groups, int64_t head_dimension, int64_t rotated, bool mean);
void split_heads_backward(at::TensorList grads, const at::Tensor& cos, const at::Tensor& sin,
                          int64_t rotated, bool mean);
void group_gates(const at::Tensor& mean, const at::Tensor& fc1, const at::Tensor& fc2,
                 int64_t heads);
void group_gates_backward(const at::Tensor& d_gates, const at::Tensor& gates,
                          const at::Tensor& mean, const at::Tensor& fc1, const at::Tensor& fc2);
void cross_entropy_(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& weight);
} // namespace checked

} // namespace nsa::ops
