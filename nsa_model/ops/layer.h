// The layers around attention, as single operations with their own autograd: residual sum with
// RMSNorm, splitting the joined projections, the groups' gates, softmax cross-entropy of a
// chunk.
//
// `composed`: each is a few ATen operations here, on any device and dtype. For BF16 on CUDA each
// is one pass over memory in libnsa_ops_cuda.so. `fused` chooses: false always composes, true
// uses what the device has, which on a CPU is the same composition.
//
// Thread-safe. Wrong shapes or dtypes throw c10::Error.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>
#include <vector>

namespace nsa::ops {

// sum = x + addend rounded to x's dtype (x itself without one), and its RMSNorm: gain * sum /
// sqrt(mean(sum^2) + epsilon), FP32 inside. x [..., C], gain [C], one dtype.
struct NormedSum {
  at::Tensor sum, normed;
};
NormedSum add_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& addend,
                       const at::Tensor& gain, double epsilon, bool fused);
// The same (fused) with an addend, from the sum that it gave: the same bits, those of the gradient
// too.
NormedSum rms_norm_of_sum(const at::Tensor& sum, const at::Tensor& gain, double epsilon);

// Heads of the joined projections [B, S, heads + sets * groups heads of D] as tensors of their own:
// q [B, S, heads, D] and sets of groups [B, S, groups, D]; q and the first `rotated` sets are
// rotated by the tables as rope() does. mean [B, S, groups, D]: of each group's queries, not
// rotated; undefined unless wanted.
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

// Gates [B, S, heads, branches], FP32 (FP64 for FP64), of every head: softmax(fc2 silu(fc1 m) /
// temperature) of its group's mean query m. mean [B, S, groups, D], fc1 [hidden, D], fc2 [branches,
// hidden], one dtype. The composition rounds between its products, the fused kernel does not.
at::Tensor group_gates(const at::Tensor& mean, const at::Tensor& fc1, const at::Tensor& fc2,
                       double temperature, int64_t heads, bool fused);

// weight * -log softmax(logits)[label] of each row, FP32 (FP64 for FP64) [N]. With `gradient` the
// logits [N, V] are overwritten by weight * (softmax - one_hot). labels [N] int64 in [0, V), weight
// [N] in the result's dtype. No autograd: the caller has the gradient in hand.
at::Tensor cross_entropy_(const at::Tensor& logits, const at::Tensor& labels,
                          const at::Tensor& weight, bool gradient, bool fused);

// The operations behind those with autograd, each implemented as nsa::<name> for CUDA too.
namespace composed {
std::tuple<at::Tensor, at::Tensor, at::Tensor> // sum (empty without addend), normed, 1 / rms
add_rms_norm(const at::Tensor& x, const std::optional<at::Tensor>& addend, const at::Tensor& gain,
             double epsilon);
std::tuple<at::Tensor, at::Tensor> // of x (and of the addend), of the gain
add_rms_norm_backward(const at::Tensor& d_normed, const std::optional<at::Tensor>& d_sum,
                      const at::Tensor& sum, const at::Tensor& inverse, const at::Tensor& gain);
std::vector<at::Tensor> // q, the sets, the mean if wanted
split_heads(const at::Tensor& joined, const at::Tensor& cos, const at::Tensor& sin, int64_t heads,
            int64_t groups, int64_t head_dimension, int64_t rotated, bool mean);
at::Tensor // of joined; `grads` as split_heads gives them
split_heads_backward(at::TensorList grads, const at::Tensor& cos, const at::Tensor& sin,
                     int64_t rotated, bool mean);
at::Tensor group_gates(const at::Tensor& mean, const at::Tensor& fc1, const at::Tensor& fc2,
                       double temperature, int64_t heads);
std::tuple<at::Tensor, at::Tensor, at::Tensor> // of the mean, fc1, fc2
group_gates_backward(const at::Tensor& d_gates, const at::Tensor& gates, const at::Tensor& mean,
                     const at::Tensor& fc1, const at::Tensor& fc2, double temperature);
at::Tensor cross_entropy_(at::Tensor logits, const at::Tensor& labels, const at::Tensor& weight,
                          bool gradient);
} // namespace composed

// What the arguments of those operations must be to each other, whoever calls them: they come from
// Python too, and the CUDA versions take sizes on trust behind these. Throw c10::Error.
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
