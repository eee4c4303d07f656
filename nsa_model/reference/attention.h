// Oracle: Native Sparse Attention in float64 with explicit loops, forward and backward. It is
// written to be compared with the equations (arXiv 2502.11089, Eq. 5 to 12), not to be fast.
//
// Pure functions, any thread. Arrays are row-major, innermost index last:
//   q, o          [batch, sequence, heads, head_dimension]
//   k[0], v[0]    [batch, compressed_count(sequence), groups, head_dimension]   compressed tokens
//   k[1..2], v[]  [batch, sequence, groups, head_dimension]                     selected, sliding
//   gates         [batch, sequence, heads, 3]     compressed, selected, sliding
//   lse           [batch, sequence, heads]        natural logarithm; -inf where a row sees no key
//   scores        [batch, sequence, groups, block_count(sequence)]   p'_slc of Eq. 10
//   indices       [batch, sequence, groups, selected_blocks]  ascending, then -1
// Given indices are a set: order and repetition do not matter, and a negative index means no block.
// Query head h belongs to group h / (heads / groups). Blocks and indices count within a document.
#pragma once

#include "nsa_model/reference/grid.h"

#include <array>

namespace nsa::reference {

using Array = std::vector<double>;

struct Shape {
  int64_t batch = 1, sequence = 0, heads = 1, groups = 1, head_dimension = 1;
  double scale = 0; // factor of q . k; 0 means 1 / sqrt(head_dimension)
};

struct Inputs {
  Array q;
  std::array<Array, 3> k, v;
  Array gates;
  std::vector<int64_t> document_start; // [batch, sequence]; empty: every row is one document
  std::vector<int32_t> indices;        // given selection; empty: blocks are selected by score
  std::vector<int64_t> tokens;         // tokens of each row to compute, ascending; empty: all
};

struct Outputs {
  std::array<Array, 3> branch_o, branch_lse;
  Array scores;
  std::vector<int32_t> indices;
  Array o; // sum of gate * o over the branches
};

struct Gradients {
  Array q, gates;
  std::array<Array, 3> k, v;
};

Outputs attend(const Shape& shape, const Sizes& sizes, const Inputs& inputs);

// Gradients of sum(grad_o * o). The selection is constant: no gradient flows through it.
Gradients attend_backward(const Shape& shape, const Sizes& sizes, const Inputs& inputs,
                          const Outputs& outputs, const Array& grad_o);

// Eq. 10 alone: p'_slc of one token, summed over the heads of a group, for blocks 0 .. t / l'.
// `probabilities[h]` holds p_cmp of one head for the compressed tokens that the token sees.
Array block_scores(const std::vector<Array>& probabilities, int64_t t, const Sizes& sizes);

// Eq. 11 with the rules of design 5.2. Blocks 0, c - 1 and c (c = t / l') are always selected and
// included in the count. The others are selected by score; ties go to the lower block. Ascending.
std::vector<int32_t> select_blocks(const Array& scores, int64_t t, const Sizes& sizes);

// Eq. 7 with phi = mean. x: [batch, sequence, groups, head_dimension] -> compressed tokens.
Array pool(const Shape& shape, const Sizes& sizes, const Array& x,
           const std::vector<int64_t>& document_start);
Array pool_backward(const Shape& shape, const Sizes& sizes, const Array& grad_pooled,
                    const std::vector<int64_t>& document_start);

} // namespace nsa::reference
