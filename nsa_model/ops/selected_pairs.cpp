#include "nsa_model/ops/selected_pairs.h"

namespace nsa::ops {

using at::Tensor;

SelectedPairs::SelectedPairs(const BranchArguments& a, int64_t first)
    : a_(a), first_(first), later_(a.q.size(1) - first), batch_(a.q.size(0)), groups_(a.k.size(2)),
      per_group_(a.q.size(2) / groups_), block_(a.sizes.selection_block),
      blocks_(reference::block_count(a.q.size(1), a.sizes)), slots_(a.sizes.selected_blocks - 1) {
  padded_ = blocks_ * block_ - first_;
  const auto longs = a.q.options().dtype(at::kLong);
  const auto ints = a.q.options().dtype(at::kInt);
  // Sequence number of a pair: (b * G + g) * blocks + block. The last slot is the own block.
  const Tensor base =
      at::arange(batch_ * groups_, ints).mul_(blocks_).view({batch_, 1, groups_, 1});
  const Tensor sequence =
      (a.indices.narrow(1, first_, later_).narrow(3, 0, slots_) + base).flatten();
  auto [sorted, order] = at::sort(sequence, /*stable=*/true, 0, false);
  const int64_t sequences = batch_ * groups_ * blocks_;
  ragged_.q_starts = at::searchsorted(sorted, at::arange(sequences + 1, ints), /*out_int32=*/true);
  ragged_.k_starts = at::arange(sequences + 1, ints).mul_(block_);
  // An upper bound, and never 1: FlashAttention treats a longest query of 1 as decoding, with one
  // row for each sequence.
  ragged_.longest_q = std::max<int64_t>(2, later_);
  ragged_.longest_k = block_;
  row_of_pair_ = order.div(slots_, "floor");
  place_ =
      at::empty_like(order).scatter_(0, order, at::arange(order.numel(), longs)).view({-1, slots_});
}

// x [b, later, ...] -> [b * blocks, l', ...]; the last block is padded.
Tensor SelectedPairs::own_blocks(const Tensor& x, double padding) const {
  Tensor whole = x;
  if (padded_ > later_) {
    std::vector<int64_t> shape = x.sizes().vec();
    shape[1] = padded_ - later_;
    whole = at::cat({x, at::full(shape, padding, x.options())}, 1);
  }
  return whole.unflatten(1, {padded_ / block_, block_}).flatten(0, 1);
}

Tensor SelectedPairs::own_back(const Tensor& x) const {
  return x.unflatten(0, {batch_, padded_ / block_}).flatten(1, 2).narrow(1, 0, later_);
}

// x [b, later, H, ...] -> [b * later * G, per_group, ...]
Tensor SelectedPairs::rows(const Tensor& x) const {
  return x.unflatten(2, {groups_, per_group_}).flatten(0, 2);
}
Tensor SelectedPairs::of_pairs(const Tensor& rows) const {
  return rows.index_select(0, row_of_pair_);
}
Tensor SelectedPairs::slot(const Tensor& of_pairs, int64_t slot) const {
  return of_pairs.index_select(0, place_.select(1, slot));
}

DenseProblem SelectedPairs::own_problem() const {
  const auto later = [&](const Tensor& x) { return own_blocks(x.narrow(1, first_, later_)); };
  return {later(a_.q), later(a_.k), later(a_.v), a_.scale, true};
}

DenseProblem SelectedPairs::pair_problem() const {
  const auto by_block = [&](const Tensor& x) { // [b, L, G, D] -> [b * G * blocks * l', 1, D]
    return at::constant_pad_nd(x.transpose(1, 2), {0, 0, 0, blocks_ * block_ - x.size(1)})
        .contiguous()
        .flatten(0, 2)
        .unsqueeze(1);
  };
  return {of_pairs(rows(a_.q.narrow(1, first_, later_))),
          by_block(a_.k),
          by_block(a_.v),
          a_.scale,
          false,
          0,
          ragged_};
}

std::vector<Tensor> SelectedPairs::forward(const Tensor& o) const {
  const auto type = compute_type(a_.q.scalar_type());
  const DenseResult own = dense_forward(own_problem()), pair = dense_forward(pair_problem());
  const Tensor own_lse = rows(own_back(own.lse.transpose(1, 2))).to(type); // [rows, per_group]
  const Tensor pair_lse = pair.lse.transpose(0, 1).to(type);               // [T, per_group]
  std::vector<Tensor> parts{own_lse};
  for (int64_t s = 0; s < slots_; ++s)
    parts.push_back(slot(pair_lse, s));
  const Tensor lse = at::logsumexp(at::stack(parts), {0});
  Tensor sum = rows(own_back(own.o)).to(type) * (own_lse - lse).exp_().unsqueeze(2);
  for (int64_t s = 0; s < slots_; ++s)
    sum.addcmul_(slot(pair.o, s).to(type), (parts[1 + s] - lse).exp_().unsqueeze(2));
  const auto back = [&](const Tensor& x) {
    return x.unflatten(0, {batch_, later_, groups_}).flatten(2, 3);
  };
  o.copy_(back(sum));
  return {o.contiguous(), back(lse), own.random_state, own.unused, pair.random_state, pair.unused};
}

void SelectedPairs::backward(const std::vector<Tensor>& saved, const Tensor& grad_o,
                             const Tensor& grad_q, const Tensor& grad_k,
                             const Tensor& grad_v) const {
  const Tensor &o = saved[0], &lse = saved[1];
  // Each part's backward uses the merged output and log-sum-exp, so it computes its part of the
  // whole gradient.
  const DenseGradients own = dense_backward(
      own_problem(),
      {own_blocks(o), own_blocks(lse).transpose(1, 2).contiguous(), saved[2], saved[3]},
      own_blocks(grad_o));
  grad_q.add_(own_back(own.q));
  grad_k.narrow(1, first_, later_).add_(own_back(own.k));
  grad_v.narrow(1, first_, later_).add_(own_back(own.v));
  const DenseGradients pair = dense_backward(
      pair_problem(),
      {of_pairs(rows(o)), of_pairs(rows(lse)).transpose(0, 1).contiguous(), saved[4], saved[5]},
      of_pairs(rows(grad_o)));
  const auto unpacked = [&](const Tensor& x) {
    return x.squeeze(1)
        .unflatten(0, {batch_, groups_, blocks_ * block_})
        .transpose(1, 2)
        .narrow(1, 0, grad_k.size(1));
  };
  grad_k.add_(unpacked(pair.k));
  grad_v.add_(unpacked(pair.v));
  const Tensor grad_rows = grad_q.unflatten(2, {groups_, per_group_});
  for (int64_t s = 0; s < slots_; ++s)
    grad_rows.add_(slot(pair.q, s).view(grad_rows.sizes()));
}

} // namespace nsa::ops
