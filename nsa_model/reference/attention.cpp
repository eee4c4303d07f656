#include "nsa_model/reference/attention.h"

#include "nsa_model/reference/row.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

namespace nsa::reference {

namespace {

// Computes offsets of one token's heads in the arrays of attention.h.
struct Indexer {
  const Shape& shape;
  int64_t keys[3]; // rows of k[branch] in one batch row

  Indexer(const Shape& s, const Sizes& sizes)
      : shape(s), keys{compressed_count(s.sequence, sizes), s.sequence, s.sequence} {}
  int64_t head(int64_t b, int64_t t, int64_t h) const {
    return (b * shape.sequence + t) * shape.heads + h;
  }
  int64_t query(int64_t b, int64_t t, int64_t h) const {
    return head(b, t, h) * shape.head_dimension;
  }
  int64_t key(int branch, int64_t b, int64_t row, int64_t g) const {
    return ((b * keys[branch] + row) * shape.groups + g) * shape.head_dimension;
  }
};

double scale_of(const Shape& shape) {
  return shape.scale != 0 ? shape.scale : 1.0 / std::sqrt(double(shape.head_dimension));
}

std::span<const int64_t> starts_of_row(const std::vector<int64_t>& document_start, int64_t b,
                                       int64_t sequence) {
  if (document_start.empty()) return {};
  return {document_start.data() + b * sequence, size_t(sequence)};
}

// Rows of k[branch] that token `t` of `document` attends to, in ascending order.
std::vector<int64_t> visible_rows(int branch, const Document& document, int64_t t,
                                  const int32_t* indices, const Sizes& sizes) {
  const int64_t position = t - document.begin;
  std::vector<int64_t> rows;
  if (branch == 0) {
    for (int64_t i = 0; i < compressed_count(position + 1, sizes); ++i)
      rows.push_back(document.compressed_begin + i);
  } else if (branch == 1) {
    for (const int32_t block : std::set<int32_t>(indices, indices + sizes.selected_blocks)) {
      if (block < 0) continue;
      const int64_t first = block * sizes.selection_block;
      for (int64_t p = first; p < first + sizes.selection_block && p <= position; ++p)
        rows.push_back(document.begin + p);
    }
  } else {
    for (int64_t p = std::max<int64_t>(0, position - sizes.window + 1); p <= position; ++p)
      rows.push_back(document.begin + p);
  }
  return rows;
}

template <class Visit>
void for_each_token(const Shape& shape, const Sizes& sizes, const Inputs& inputs, Visit visit) {
  const auto wanted = [&](int64_t t) {
    return inputs.tokens.empty() ||
           std::binary_search(inputs.tokens.begin(), inputs.tokens.end(), t);
  };
  for (int64_t b = 0; b < shape.batch; ++b) {
    const auto row_starts = starts_of_row(inputs.document_start, b, shape.sequence);
    for (const Document& document : documents_of_row(row_starts, shape.sequence, sizes))
      for (int64_t t = document.begin; t < document.end; ++t)
        if (wanted(t)) visit(b, document, t);
  }
}

} // namespace

Array block_scores(const std::vector<Array>& probabilities, int64_t t, const Sizes& sizes) {
  Array scores(t / sizes.selection_block + 1, 0.0);
  for (const Array& p : probabilities)
    for (size_t b = 0; b < scores.size(); ++b)
      for (size_t i = 0; i < p.size(); ++i)
        scores[b] += double(shared_strides(int64_t(i), int64_t(b), sizes)) * p[i];
  return scores;
}

std::vector<int32_t> select_blocks(const Array& scores, int64_t t, const Sizes& sizes) {
  const int64_t current = t / sizes.selection_block;
  std::vector<int32_t> chosen;
  if (current + 1 <= sizes.selected_blocks) {
    chosen.resize(current + 1);
    std::iota(chosen.begin(), chosen.end(), 0);
    return chosen;
  }
  std::vector<int32_t> free(current - 2); // blocks 1 .. current - 2
  std::iota(free.begin(), free.end(), 1);
  std::stable_sort(free.begin(), free.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  chosen = {0, int32_t(current - 1), int32_t(current)};
  chosen.insert(chosen.end(), free.begin(), free.begin() + (sizes.selected_blocks - 3));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

Outputs attend(const Shape& shape, const Sizes& sizes, const Inputs& inputs) {
  const Indexer at(shape, sizes);
  const int64_t per_group = shape.heads / shape.groups;
  const int64_t blocks = block_count(shape.sequence, sizes);
  const double scale = scale_of(shape);
  Outputs out;
  for (int branch = 0; branch < 3; ++branch) {
    out.branch_o[branch].assign(inputs.q.size(), 0.0);
    out.branch_lse[branch].assign(inputs.q.size() / shape.head_dimension,
                                  -std::numeric_limits<double>::infinity());
  }
  out.o.assign(inputs.q.size(), 0.0);
  out.scores.assign(shape.batch * shape.sequence * shape.groups * blocks, 0.0);
  out.indices = inputs.indices;
  if (out.indices.empty())
    out.indices.assign(shape.batch * shape.sequence * shape.groups * sizes.selected_blocks, -1);

  for_each_token(shape, sizes, inputs, [&](int64_t b, const Document& document, int64_t t) {
    for (int64_t g = 0; g < shape.groups; ++g) {
      const int64_t token_group = (b * shape.sequence + t) * shape.groups + g;
      int32_t* indices = out.indices.data() + token_group * sizes.selected_blocks;
      std::vector<Array> probabilities;
      for (int branch = 0; branch < 3; ++branch) {
        const auto rows = visible_rows(branch, document, t, indices, sizes);
        for (int64_t h = g * per_group; h < (g + 1) * per_group; ++h) {
          Row row{inputs.q.data() + at.query(b, t, h), shape.head_dimension, scale, {}, {}};
          for (const int64_t key_row : rows) {
            row.k.push_back(inputs.k[branch].data() + at.key(branch, b, key_row, g));
            row.v.push_back(inputs.v[branch].data() + at.key(branch, b, key_row, g));
          }
          double lse = 0;
          double* o = out.branch_o[branch].data() + at.query(b, t, h);
          const Array p = attend_row(row, o, lse);
          out.branch_lse[branch][at.head(b, t, h)] = lse;
          if (branch == 0) probabilities.push_back(p);
          const double gate = inputs.gates[at.head(b, t, h) * 3 + branch];
          for (int64_t e = 0; e < shape.head_dimension; ++e)
            out.o[at.query(b, t, h) + e] += gate * o[e];
        }
        if (branch != 0) continue;
        const int64_t position = t - document.begin;
        const Array scores = block_scores(probabilities, position, sizes);
        std::copy(scores.begin(), scores.end(), out.scores.begin() + token_group * blocks);
        if (!inputs.indices.empty()) continue;
        const auto chosen = select_blocks(scores, position, sizes);
        std::copy(chosen.begin(), chosen.end(), indices);
      }
    }
  });
  return out;
}

Gradients attend_backward(const Shape& shape, const Sizes& sizes, const Inputs& inputs,
                          const Outputs& outputs, const Array& grad_o) {
  const Indexer at(shape, sizes);
  const int64_t per_group = shape.heads / shape.groups;
  const double scale = scale_of(shape);
  Gradients grad;
  grad.q.assign(inputs.q.size(), 0.0);
  grad.gates.assign(inputs.gates.size(), 0.0);
  for (int branch = 0; branch < 3; ++branch) {
    grad.k[branch].assign(inputs.k[branch].size(), 0.0);
    grad.v[branch].assign(inputs.v[branch].size(), 0.0);
  }
  for_each_token(shape, sizes, inputs, [&](int64_t b, const Document& document, int64_t t) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t g = h / per_group;
      const int64_t token_group = (b * shape.sequence + t) * shape.groups + g;
      const int32_t* indices = outputs.indices.data() + token_group * sizes.selected_blocks;
      for (int branch = 0; branch < 3; ++branch) {
        const double gate = inputs.gates[at.head(b, t, h) * 3 + branch];
        Array grad_branch(shape.head_dimension);
        for (int64_t e = 0; e < shape.head_dimension; ++e) {
          const double upstream = grad_o[at.query(b, t, h) + e];
          grad_branch[e] = gate * upstream;
          grad.gates[at.head(b, t, h) * 3 + branch] +=
              upstream * outputs.branch_o[branch][at.query(b, t, h) + e];
        }
        Row row{inputs.q.data() + at.query(b, t, h), shape.head_dimension, scale, {}, {}};
        std::vector<double*> grad_k, grad_v;
        for (const int64_t key_row : visible_rows(branch, document, t, indices, sizes)) {
          const int64_t offset = at.key(branch, b, key_row, g);
          row.k.push_back(inputs.k[branch].data() + offset);
          row.v.push_back(inputs.v[branch].data() + offset);
          grad_k.push_back(grad.k[branch].data() + offset);
          grad_v.push_back(grad.v[branch].data() + offset);
        }
        attend_row_backward(row, grad_branch.data(), grad.q.data() + at.query(b, t, h), grad_k,
                            grad_v);
      }
    }
  });
  return grad;
}

Array pool(const Shape& shape, const Sizes& sizes, const Array& x,
           const std::vector<int64_t>& document_start) {
  const int64_t width = shape.groups * shape.head_dimension;
  const int64_t count = compressed_count(shape.sequence, sizes);
  Array pooled(shape.batch * count * width, 0.0);
  for (int64_t b = 0; b < shape.batch; ++b)
    for (const Document& document :
         documents_of_row(starts_of_row(document_start, b, shape.sequence), shape.sequence, sizes))
      for (int64_t i = 0; i < compressed_count(document.length(), sizes); ++i)
        for (int64_t r = 0; r < sizes.compression_block; ++r)
          for (int64_t e = 0; e < width; ++e)
            pooled[(b * count + document.compressed_begin + i) * width + e] +=
                x[(b * shape.sequence + document.begin + i * sizes.compression_stride + r) * width +
                  e] /
                double(sizes.compression_block);
  return pooled;
}

Array pool_backward(const Shape& shape, const Sizes& sizes, const Array& grad_pooled,
                    const std::vector<int64_t>& document_start) {
  const int64_t width = shape.groups * shape.head_dimension;
  const int64_t count = compressed_count(shape.sequence, sizes);
  Array grad(shape.batch * shape.sequence * width, 0.0);
  for (int64_t b = 0; b < shape.batch; ++b)
    for (const Document& document :
         documents_of_row(starts_of_row(document_start, b, shape.sequence), shape.sequence, sizes))
      for (int64_t i = 0; i < compressed_count(document.length(), sizes); ++i)
        for (int64_t r = 0; r < sizes.compression_block; ++r)
          for (int64_t e = 0; e < width; ++e)
            grad[(b * shape.sequence + document.begin + i * sizes.compression_stride + r) * width +
                 e] += grad_pooled[(b * count + document.compressed_begin + i) * width + e] /
                       double(sizes.compression_block);
  return grad;
}

} // namespace nsa::reference
