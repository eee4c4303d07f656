#include "nsa_model/ops/dense_attention.h"

#include "nsa_model/ops/branch_pass.h"

#include <limits>

namespace nsa::ops {

using at::Tensor;

namespace {

// ---- without a GPU: q [N, Sq, H, D] against k, v [N, Sk, G, D] by dense products ----

struct Dense {
  Tensor q, k, v; // [N, G, per_group * Sq, D] and [N, G, Sk, D] in the compute type
  int64_t per_group;
};

Tensor rows_of(const Tensor& x, int64_t groups) { // [N, Sq, H, D] -> [N, G, per_group * Sq, D]
  return x.to(compute_type(x.scalar_type()))
      .unflatten(2, {groups, x.size(2) / groups})
      .permute({0, 2, 3, 1, 4})
      .flatten(2, 3);
}
Tensor rows_back(const Tensor& x, int64_t per_group) {
  return x.unflatten(2, {per_group, x.size(2) / per_group}).permute({0, 3, 1, 2, 4}).flatten(2, 3);
}
Tensor keys_of(const Tensor& x) {
  return x.to(compute_type(x.scalar_type())).transpose(1, 2);
}

Tensor plain_scores(const DenseProblem& p) { // [N, G, per_group, Sq, Sk]
  const int64_t groups = p.k.size(2), queries = p.q.size(1), keys = p.k.size(1);
  Tensor s = at::matmul(rows_of(p.q, groups), keys_of(p.k).transpose(2, 3)).mul_(p.scale);
  s = s.unflatten(2, {p.q.size(2) / groups, queries});
  if (!p.causal) return s;
  Tensor hidden = at::ones({queries, keys}, p.q.options().dtype(at::kBool));
  Tensor seen = hidden.tril();
  if (p.window > 0) seen = seen.logical_and(hidden.triu(1 - p.window));
  return s.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
}

DenseResult plain_forward(const DenseProblem& p) {
  const Tensor s = plain_scores(p);
  const int64_t per_group = s.size(2);
  const Tensor o = at::matmul(at::softmax(s, -1).flatten(2, 3), keys_of(p.v));
  return {
      rows_back(o, per_group).to(p.q.scalar_type()), at::logsumexp(s, {-1}).flatten(1, 2), {}, {}};
}

DenseGradients plain_backward(const DenseProblem& p, const DenseResult& result,
                              const Tensor& grad_o) {
  const int64_t groups = p.k.size(2), per_group = p.q.size(2) / groups;
  const Tensor probability =
      (plain_scores(p) - result.lse.unflatten(1, {groups, per_group}).unsqueeze(4))
          .exp_()
          .flatten(2, 3);
  const Tensor up = rows_of(grad_o, groups), o = rows_of(result.o, groups);
  const Tensor delta = (up * o).sum(-1, true);
  const Tensor grad_s =
      probability * (at::matmul(up, keys_of(p.v).transpose(2, 3)) - delta) * p.scale;
  const auto back = [&](const Tensor& x) { return x.transpose(1, 2).to(p.k.scalar_type()); };
  return {rows_back(at::matmul(grad_s, keys_of(p.k)), per_group).to(p.q.scalar_type()),
          back(at::matmul(grad_s.transpose(2, 3), rows_of(p.q, groups))),
          back(at::matmul(probability.transpose(2, 3), up))};
}

// Calls visit(problem of one sequence, its first row, rows, first key, keys) for each ragged
// sequence.
template <class Visit> void for_each_sequence(const DenseProblem& p, Visit visit) {
  const Tensor q_starts = p.ragged->q_starts.contiguous(),
               k_starts = p.ragged->k_starts.contiguous();
  const int* q = q_starts.const_data_ptr<int>();
  const int* k = k_starts.const_data_ptr<int>();
  for (int64_t i = 0; i + 1 < q_starts.numel(); ++i) {
    const int64_t rows = q[i + 1] - q[i], keys = k[i + 1] - k[i];
    if (rows == 0) continue;
    const DenseProblem one{p.q.narrow(0, q[i], rows).unsqueeze(0),
                           p.k.narrow(0, k[i], keys).unsqueeze(0),
                           p.v.narrow(0, k[i], keys).unsqueeze(0), p.scale};
    visit(one, q[i], rows, k[i], keys);
  }
}

DenseResult plain_ragged_forward(const DenseProblem& p) {
  DenseResult result;
  result.o = at::empty_like(p.q);
  result.lse =
      at::empty({p.q.size(1), p.q.size(0)}, p.q.options().dtype(compute_type(p.q.scalar_type())));
  for_each_sequence(p, [&](const DenseProblem& one, int64_t row, int64_t rows, int64_t, int64_t) {
    const DenseResult r = plain_forward(one);
    result.o.narrow(0, row, rows).copy_(r.o.squeeze(0));
    result.lse.narrow(1, row, rows).copy_(r.lse.squeeze(0));
  });
  return result;
}

DenseGradients plain_ragged_backward(const DenseProblem& p, const DenseResult& result,
                                     const Tensor& grad_o) {
  DenseGradients grads{at::zeros_like(p.q), at::zeros_like(p.k), at::zeros_like(p.v)};
  for_each_sequence(p, [&](const DenseProblem& one, int64_t row, int64_t rows, int64_t key,
                           int64_t keys) {
    const auto cut = [&](const Tensor& x) { return x.narrow(0, row, rows).unsqueeze(0); };
    const DenseGradients g = plain_backward(
        one, {cut(result.o), result.lse.narrow(1, row, rows).unsqueeze(0), {}, {}}, cut(grad_o));
    grads.q.narrow(0, row, rows).copy_(g.q.squeeze(0));
    grads.k.narrow(0, key, keys).copy_(g.k.squeeze(0));
    grads.v.narrow(0, key, keys).copy_(g.v.squeeze(0));
  });
  return grads;
}

// ---- on a GPU: FlashAttention-2. Its window bounds are inclusive distances. ----

struct Window {
  std::optional<int64_t> left, right;
};
Window window_of(const DenseProblem& p) {
  return p.window > 0 ? Window{p.window - 1, 0} : Window{};
}

} // namespace

DenseResult dense_forward(const DenseProblem& p) {
  if (!p.q.is_cuda()) return p.ragged ? plain_ragged_forward(p) : plain_forward(p);
  std::optional<Tensor> q_starts, k_starts;
  if (p.ragged) {
    q_starts = p.ragged->q_starts;
    k_starts = p.ragged->k_starts;
  }
  const Window window = window_of(p);
  auto [o, lse, random_state, unused, mask] = at::_ops::_flash_attention_forward::call(
      p.q, p.k, p.v, q_starts, k_starts, p.ragged ? p.ragged->longest_q : p.q.size(1),
      p.ragged ? p.ragged->longest_k : p.k.size(1), 0.0, p.causal, false, p.scale, window.left,
      window.right, std::nullopt, std::nullopt);
  return {o, lse, random_state, unused};
}

DenseGradients dense_backward(const DenseProblem& p, const DenseResult& result,
                              const Tensor& grad_o) {
  if (!p.q.is_cuda())
    return p.ragged ? plain_ragged_backward(p, result, grad_o) : plain_backward(p, result, grad_o);
  const Window window = window_of(p);
  auto [q, k, v] = at::_ops::_flash_attention_backward::call(
      grad_o, p.q, p.k, p.v, result.o, result.lse, p.ragged ? p.ragged->q_starts : Tensor(),
      p.ragged ? p.ragged->k_starts : Tensor(), p.ragged ? p.ragged->longest_q : p.q.size(1),
      p.ragged ? p.ragged->longest_k : p.k.size(1), 0.0, p.causal, result.random_state,
      result.unused, p.scale, window.left, window.right);
  return {q, k, v};
}

} // namespace nsa::ops
