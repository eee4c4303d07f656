#include "nsa_model/ops/regrouped.h"

#include "nsa_model/choice/serves.h"
#include "nsa_model/ops/dense_attention.h"
#include "nsa_model/ops/selected_pairs.h"

namespace nsa::ops {

using at::Tensor;

namespace {

void keep(std::vector<Tensor>& saved, const DenseResult& r) {
  saved.insert(saved.end(), {r.o, r.lse, r.random_state, r.unused});
}
DenseResult kept(const std::vector<Tensor>& saved, size_t part) {
  return {saved[4 * part], saved[4 * part + 1], saved[4 * part + 2], saved[4 * part + 3]};
}

// Tokens are t = r * d + j. A token sees r - l/d + 1 compressed tokens if j < d - 1, and one more
// if j = d - 1. So the mask is causal for rows from l/d (or l/d - 1) on.
class Classes {
public:
  explicit Classes(const BranchArguments& a)
      : a_(a), stride_(a.sizes.compression_stride), lag_(a.sizes.compression_block / stride_),
        rows_(a.q.size(1) / stride_), batch_(a.q.size(0)) {}

  // rows of each class j < d - 1
  int64_t early_rows() const { return stride_ > 1 ? rows_ - lag_ : 0; }

  // x [b, L, H, D]. early() returns the classes j < d - 1 as [b, d - 1, R, H, D]. last() returns
  // the class d - 1 as [b, R + 1, H, D].
  Tensor early(const Tensor& x) const {
    return x.unflatten(1, {rows_, stride_}).slice(1, lag_).slice(2, 0, stride_ - 1).transpose(1, 2);
  }
  Tensor last(const Tensor& x) const {
    return x.unflatten(1, {rows_, stride_}).slice(1, lag_ - 1).select(2, stride_ - 1);
  }
  void zero_blind(const Tensor& x) const { // tokens that see no compressed token
    x.narrow(1, 0, std::min(x.size(1), a_.sizes.compression_block - 1)).zero_();
  }

  DenseProblem early_problem() const {
    return {early(a_.q).flatten(0, 1), spread(a_.k), spread(a_.v), a_.scale, true};
  }
  DenseProblem last_problem() const { return {last(a_.q), a_.k, a_.v, a_.scale, true}; }

  // The gradient of a spread key is the sum over classes.
  void gather(const Tensor& spread_grad, const Tensor& grad) const {
    grad.narrow(1, 0, early_rows())
        .add_(spread_grad.unflatten(0, {batch_, stride_ - 1}).sum({1}, false, grad.scalar_type()));
  }
  int64_t batch() const { return batch_; }
  int64_t others() const { return stride_ - 1; }

private:
  // Each class j < d - 1 has the same keys.
  Tensor spread(const Tensor& k) const {
    return k.narrow(1, 0, early_rows())
        .unsqueeze(1)
        .expand({-1, stride_ - 1, -1, -1, -1})
        .flatten(0, 1);
  }
  const BranchArguments& a_;
  int64_t stride_, lag_, rows_, batch_;
};

std::vector<Tensor> compressed_forward(const BranchArguments& a, const Tensor& o) {
  const Classes classes(a);
  std::vector<Tensor> saved;
  classes.zero_blind(o);
  const DenseResult last = dense_forward(classes.last_problem());
  classes.last(o).copy_(last.o);
  keep(saved, last);
  if (classes.early_rows() > 0) {
    const DenseResult early = dense_forward(classes.early_problem());
    classes.early(o).copy_(early.o.unflatten(0, {classes.batch(), classes.others()}));
    keep(saved, early);
  }
  return saved;
}

void compressed_backward(const BranchArguments& a, const std::vector<Tensor>& saved,
                         const Tensor& grad_o, const Tensor& grad_q, const Tensor& grad_k,
                         const Tensor& grad_v) {
  const Classes classes(a);
  const DenseGradients last =
      dense_backward(classes.last_problem(), kept(saved, 0), classes.last(grad_o).contiguous());
  classes.last(grad_q).add_(last.q);
  grad_k.add_(last.k);
  grad_v.add_(last.v);
  if (classes.early_rows() == 0) return;
  const DenseGradients early = dense_backward(classes.early_problem(), kept(saved, 1),
                                              classes.early(grad_o).flatten(0, 1).contiguous());
  classes.early(grad_q).add_(early.q.unflatten(0, {classes.batch(), classes.others()}));
  classes.gather(early.k, grad_k);
  classes.gather(early.v, grad_v);
}

DenseProblem first_tokens(const BranchArguments& a, int64_t count) {
  return {a.q.narrow(1, 0, count), a.k.narrow(1, 0, count), a.v.narrow(1, 0, count), a.scale, true};
}

// The first tokens, which see every causal block.
int64_t all_selected(const BranchArguments& a) {
  return std::min(a.q.size(1), a.sizes.selected_blocks * a.sizes.selection_block);
}

} // namespace

bool regrouped_serves(const BranchArguments& a, bool selected_here) {
  const bool narrow = a.q.scalar_type() == at::kBFloat16 || a.q.scalar_type() == at::kHalf;
  return serves::why_not_regrouped({.gpu = a.q.is_cuda(),
                                    .narrow = narrow,
                                    .head_dimension = a.q.size(-1),
                                    .length = a.q.size(1),
                                    .compressed = a.branch == Branch::kCompressed,
                                    .compression_block = a.sizes.compression_block,
                                    .compression_stride = a.sizes.compression_stride,
                                    .given_indices = a.branch == Branch::kSelected &&
                                                     a.indices.defined() && !selected_here})
      .empty();
}

std::vector<Tensor> regrouped_forward(const BranchArguments& a, const Tensor& o) {
  if (a.branch == Branch::kCompressed) return compressed_forward(a, o);
  std::vector<Tensor> saved;
  if (a.branch == Branch::kSliding) {
    const DenseResult r = dense_forward({a.q, a.k, a.v, a.scale, true, a.sizes.window});
    o.copy_(r.o);
    keep(saved, r);
    return saved;
  }
  const int64_t first = all_selected(a);
  const DenseResult r = dense_forward(first_tokens(a, first));
  o.narrow(1, 0, first).copy_(r.o);
  keep(saved, r);
  if (first < a.q.size(1)) {
    const SelectedPairs pairs(a, first);
    for (const Tensor& t : pairs.forward(o.narrow(1, first, a.q.size(1) - first)))
      saved.push_back(t);
  }
  return saved;
}

void regrouped_backward(const BranchArguments& a, const std::vector<Tensor>& saved,
                        const Tensor& grad_o, const Tensor& grad_q, const Tensor& grad_k,
                        const Tensor& grad_v) {
  if (a.branch == Branch::kCompressed)
    return compressed_backward(a, saved, grad_o, grad_q, grad_k, grad_v);
  const bool sliding = a.branch == Branch::kSliding;
  const int64_t first = sliding ? a.q.size(1) : all_selected(a);
  DenseProblem problem = first_tokens(a, first);
  if (sliding) problem.window = a.sizes.window;
  const DenseGradients g =
      dense_backward(problem, kept(saved, 0), grad_o.narrow(1, 0, first).contiguous());
  grad_q.narrow(1, 0, first).add_(g.q);
  grad_k.narrow(1, 0, first).add_(g.k);
  grad_v.narrow(1, 0, first).add_(g.v);
  if (first == a.q.size(1)) return;
  const int64_t later = a.q.size(1) - first;
  const SelectedPairs pairs(a, first);
  pairs.backward({saved.begin() + 4, saved.end()}, grad_o.narrow(1, first, later),
                 grad_q.narrow(1, first, later), grad_k, grad_v);
}

} // namespace nsa::ops
