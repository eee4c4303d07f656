#include "nsa_model/ops/branch_pass.h"

#include "nsa_model/ops/selection.h"
#include "nsa_model/ops/step_part.h"

#include <limits>

namespace nsa::ops {

namespace {

using at::Tensor;

// Elements of a chunk's scores, [rows, keys]. On a CPU, scores that stay in the cache of a core are
// several times faster to read. A GPU needs work for all its multiprocessors.
constexpr int64_t kChunkElementsCpu = int64_t(1) << 17;
constexpr int64_t kChunkElementsGpu = int64_t(1) << 26;

// Queries [begin, end) of the segment and the keys [key_begin, key_end) that at least one of them
// sees.
struct Chunk {
  int64_t begin, end, key_begin, key_end;
  int64_t count() const { return end - begin; }
  int64_t keys() const { return key_end - key_begin; }
};

class Pass {
public:
  explicit Pass(const BranchArguments& a)
      : a_(a), type_(compute_type(a.q.scalar_type())), batch_(a.q.size(0)), length_(a.q.size(1)),
        heads_(a.q.size(2)), dimension_(a.q.size(3)), groups_(a.k.size(2)),
        per_group_(heads_ / groups_), rows_(batch_ * groups_), k_(by_group(a.k)) {
    if (a.v.defined()) v_ = by_group(a.v);
  }

  // First query that sees any key.
  int64_t first() const {
    if (a_.branch != Branch::kCompressed) return 0;
    return std::clamp<int64_t>(a_.sizes.compression_block - 1 - a_.offsets.query, 0, length_);
  }

  Chunk next(int64_t begin) const {
    const int64_t most_keys = keys_of(begin, length_).keys();
    const int64_t budget = a_.q.is_cpu() ? kChunkElementsCpu : kChunkElementsGpu;
    // The keys of a window chunk grow with its queries. About as many queries as keys wastes the
    // least work.
    int64_t count = a_.branch == Branch::kSliding
                        ? std::max<int64_t>(32, a_.sizes.window / 2)
                        : budget / std::max<int64_t>(1, rows_ * per_group_ * most_keys);
    if (a_.branch == Branch::kSliding)
      count = std::min(
          count, budget / std::max<int64_t>(1, rows_ * per_group_ * (a_.sizes.window + count)));
    count = std::clamp<int64_t>(count, 16, 4096);
    return keys_of(begin, std::min(length_, begin + count));
  }

  // Queries of the chunk, scaled: [rows, count * per_group, D].
  Tensor queries(const Chunk& chunk) const { return by_row(a_.q, chunk).mul_(a_.scale); }

  Tensor by_row(const Tensor& x, const Chunk& chunk) const {
    Tensor out = at::empty({batch_, groups_, chunk.count(), per_group_, x.size(3)},
                           x.options().dtype(type_));
    out.copy_(split(x, chunk));
    return out.view({rows_, chunk.count() * per_group_, x.size(3)});
  }

  // x [b, L, H, ...] narrowed to the chunk, as [b, G, count, per_group, ...].
  Tensor split(const Tensor& x, const Chunk& chunk) const {
    return x.narrow(1, chunk.begin, chunk.count())
        .unflatten(2, {groups_, per_group_})
        .transpose(1, 2);
  }

  Tensor keys(const Chunk& chunk) const { return k_.narrow(1, chunk.key_begin, chunk.keys()); }
  Tensor values(const Chunk& chunk) const { return v_.narrow(1, chunk.key_begin, chunk.keys()); }

  // Scaled scores with -inf where a key is hidden: [rows, count, per_group, keys].
  Tensor scores(const Chunk& chunk, const Tensor& queries) const {
    Tensor s = at::bmm(queries, keys(chunk).transpose(1, 2))
                   .view({rows_, chunk.count(), per_group_, chunk.keys()});
    hide(s, chunk);
    return s;
  }

  // Writes `value` for queries that see no key, because none of their given blocks is causal. Our
  // own selection always contains the current block. x: [rows, count * per_group, D].
  void blank_blind(const Tensor& x, const Chunk& chunk, double value = 0) const {
    if (a_.branch != Branch::kSelected || !a_.indices.defined()) return;
    x.view({rows_, chunk.count(), per_group_, -1})
        .masked_fill_(blind(chunk).unsqueeze(2).unsqueeze(3), value);
  }

  int64_t rows() const { return rows_; }
  int64_t per_group() const { return per_group_; }
  int64_t groups() const { return groups_; }
  at::ScalarType type() const { return type_; }
  const Tensor& k() const { return k_; }

  // [b, K, G, D] -> [b * G, K, D] in the compute type.
  Tensor by_group(const Tensor& x) const {
    Tensor out = at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options().dtype(type_));
    out.copy_(x.transpose(1, 2));
    return out.flatten(0, 1);
  }

private:
  int64_t position(int64_t query) const { return query + a_.offsets.query; }

  Chunk keys_of(int64_t begin, int64_t end) const {
    const int64_t first = position(begin), last = position(end - 1);
    int64_t key_begin = 0, key_end = last + 1;
    if (a_.branch == Branch::kCompressed) key_end = reference::compressed_count(last + 1, a_.sizes);
    if (a_.branch == Branch::kSliding)
      key_begin = std::max<int64_t>(0, first - a_.sizes.window + 1);
    return {begin, end, key_begin - a_.offsets.key, key_end - a_.offsets.key};
  }

  void hide(Tensor& s, const Chunk& chunk) const {
    const double nothing = -std::numeric_limits<double>::infinity();
    const auto integers = a_.q.options().dtype(at::kLong);
    const int64_t first = position(chunk.begin);
    if (a_.branch == Branch::kCompressed) {
      if (chunk.count() == 1) return;
      const Tensor t = at::arange(first, first + chunk.count(), integers).unsqueeze(1);
      const Tensor end = at::arange(chunk.key_begin, chunk.key_end, integers)
                             .mul_(a_.sizes.compression_stride)
                             .add_(a_.sizes.compression_block - 1);
      s.masked_fill_(end.gt(t).unsqueeze(1), nothing);
      return;
    }
    if (a_.branch == Branch::kSliding) {
      if (chunk.count() == 1) return;
      const Tensor t = at::arange(first, first + chunk.count(), integers).unsqueeze(1);
      const Tensor j = at::arange(chunk.key_begin, chunk.key_end, integers).add_(a_.offsets.key);
      s.masked_fill_(j.gt(t).logical_or_(j.le(t - a_.sizes.window)).unsqueeze(1), nothing);
      return;
    }
    const int64_t last_block = position(chunk.end - 1) / a_.sizes.selection_block;
    const Tensor future =
        at::ones({chunk.count(), chunk.count()}, integers.dtype(at::kBool)).triu_(1);
    if (last_block < a_.sizes.selected_blocks && !a_.indices.defined()) {
      s.narrow(3, chunk.keys() - chunk.count(), chunk.count())
          .masked_fill_(future.unsqueeze(1), nothing);
      return;
    }
    // Queries that see no key are left unmasked here, so that their softmax is finite.
    // blank_blind() overwrites their results.
    Tensor hidden = hidden_blocks(indices(chunk), last_block + 1)
                        .logical_and_(blind(chunk).logical_not_().unsqueeze(2))
                        .unsqueeze(3)
                        .expand({-1, -1, -1, a_.sizes.selection_block})
                        .flatten(2)
                        .contiguous()
                        .narrow(2, 0, chunk.keys());
    hidden.narrow(2, chunk.keys() - chunk.count(), chunk.count()).logical_or_(future);
    s.masked_fill_(hidden.unsqueeze(2), nothing);
  }

  // Given blocks of the chunk's queries: [rows, count, n].
  Tensor indices(const Chunk& chunk) const {
    return a_.indices.narrow(1, chunk.begin, chunk.count())
        .transpose(1, 2)
        .reshape({rows_, chunk.count(), -1});
  }

  Tensor blind(const Chunk& chunk) const { // bool [rows, count]
    const int64_t first = position(chunk.begin);
    const Tensor current = at::arange(first, first + chunk.count(), a_.q.options().dtype(at::kLong))
                               .div_(a_.sizes.selection_block, "floor")
                               .unsqueeze(1);
    const Tensor given = indices(chunk);
    return given.lt(0).logical_or_(given.gt(current)).all(-1);
  }

  const BranchArguments& a_;
  at::ScalarType type_;
  int64_t batch_, length_, heads_, dimension_, groups_, per_group_, rows_;
  Tensor k_, v_; // [rows, K, D]
};

void write_selection(const Pass& pass, const Chunk& chunk, const Tensor& p,
                     const BranchArguments& a, const BranchOutputs& out) {
  const PartScope part(StepPart::kSelection);
  const int64_t blocks = reference::block_count(a.offsets.query + chunk.end, a.sizes);
  const Tensor scores = block_scores(p.sum(2), blocks, a.sizes);
  const auto place = [&](const Tensor& target, const Tensor& value) {
    target.narrow(1, chunk.begin, chunk.count())
        .transpose(1, 2)
        .narrow(3, 0, value.size(2))
        .copy_(value.unflatten(0, {-1, pass.groups()}));
  };
  if (out.scores.defined()) place(out.scores, scores);
  if (out.indices.defined())
    place(out.indices, select_blocks(scores, a.offsets.query + chunk.begin, a.sizes));
}

// Queries that see no compressed token still select all their causal blocks.
void write_first_selection(const BranchArguments& a, const BranchOutputs& out, int64_t count) {
  const PartScope part(StepPart::kSelection);
  if (out.scores.defined()) out.scores.zero_();
  if (!out.indices.defined() || count == 0) return;
  const int64_t blocks = reference::block_count(a.offsets.query + count, a.sizes);
  const Tensor none = at::zeros({1, count, blocks}, a.q.options().dtype(at::kFloat));
  out.indices.narrow(1, 0, count)
      .copy_(select_blocks(none, a.offsets.query, a.sizes).squeeze(0).unsqueeze(1));
}

} // namespace

void branch_forward(const BranchArguments& arguments, const BranchOutputs& out) {
  const Pass pass(arguments);
  const int64_t length = arguments.q.size(1);
  int64_t first = pass.first();
  if (!out.o.defined() && !out.lse.defined() && !out.scores.defined()) {
    // If only indices are wanted, queries whose causal blocks are all selected need no scores.
    const Sizes& sizes = arguments.sizes;
    first = std::max(first, std::min(length, sizes.selected_blocks * sizes.selection_block -
                                                 arguments.offsets.query));
  }
  if (out.o.defined()) out.o.narrow(1, 0, first).zero_();
  if (out.lse.defined())
    out.lse.narrow(1, 0, first).fill_(-std::numeric_limits<double>::infinity());
  write_first_selection(arguments, out, first);
  for (int64_t begin = first; begin < length;) {
    const Chunk chunk = pass.next(begin);
    const Tensor scores = pass.scores(chunk, pass.queries(chunk));
    const Tensor p = at::softmax(scores, -1);
    if (out.o.defined()) {
      const Tensor o = at::bmm(p.view({pass.rows(), -1, chunk.keys()}), pass.values(chunk));
      pass.blank_blind(o, chunk);
      Tensor target = pass.split(out.o, chunk);
      target.copy_(o.view(target.sizes()));
    }
    if (out.lse.defined()) {
      const Tensor lse = at::logsumexp(scores, {-1});
      pass.blank_blind(lse, chunk, -std::numeric_limits<double>::infinity());
      Tensor target = pass.split(out.lse, chunk);
      target.copy_(lse.view(target.sizes()));
    }
    if (out.scores.defined() || out.indices.defined())
      write_selection(pass, chunk, p, arguments, out);
    begin = chunk.end;
  }
}

void branch_backward(const BranchArguments& arguments, const Tensor& grad_o, const Tensor& grad_q,
                     const Tensor& grad_k, const Tensor& grad_v) {
  const Pass pass(arguments);
  Tensor sum_k = at::zeros_like(pass.k()), sum_v = at::zeros_like(pass.k());
  const int64_t length = arguments.q.size(1);
  for (int64_t begin = pass.first(); begin < length;) {
    const Chunk chunk = pass.next(begin);
    const Tensor queries = pass.queries(chunk); // includes the scale, and so does grad_k below
    const Tensor p =
        at::softmax(pass.scores(chunk, queries), -1).view({pass.rows(), -1, chunk.keys()});
    const Tensor upstream = pass.by_row(grad_o, chunk);
    pass.blank_blind(upstream, chunk);
    const Tensor grad_p = at::bmm(upstream, pass.values(chunk).transpose(1, 2));
    const Tensor grad_s = at::_softmax_backward_data(grad_p, p, -1, pass.type());
    sum_v.narrow(1, chunk.key_begin, chunk.keys()).baddbmm_(p.transpose(1, 2), upstream);
    sum_k.narrow(1, chunk.key_begin, chunk.keys()).baddbmm_(grad_s.transpose(1, 2), queries);
    Tensor target = pass.split(grad_q, chunk);
    target.add_(at::bmm(grad_s, pass.keys(chunk)).view(target.sizes()), arguments.scale);
    begin = chunk.end;
  }
  grad_k.add_(sum_k.unflatten(0, {-1, pass.groups()}).transpose(1, 2));
  grad_v.add_(sum_v.unflatten(0, {-1, pass.groups()}).transpose(1, 2));
}

} // namespace nsa::ops
