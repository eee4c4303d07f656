#include "nsa_model/reference/row.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nsa::reference {

namespace {

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t e = 0; e < n; ++e)
    sum += a[e] * b[e];
  return sum;
}

} // namespace

std::vector<double> attend_row(const Row& row, double* o, double& lse) {
  const int64_t n = row.head_dimension;
  std::fill(o, o + n, 0.0);
  lse = -std::numeric_limits<double>::infinity();
  std::vector<double> p(row.k.size());
  if (p.empty()) return p;
  for (size_t i = 0; i < p.size(); ++i)
    p[i] = row.scale * dot(row.q, row.k[i], n);
  const double largest = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& value : p)
    sum += value = std::exp(value - largest);
  lse = largest + std::log(sum);
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] /= sum;
    for (int64_t e = 0; e < n; ++e)
      o[e] += p[i] * row.v[i][e];
  }
  return p;
}

void attend_row_backward(const Row& row, const double* grad_o, double* grad_q,
                         const std::vector<double*>& grad_k, const std::vector<double*>& grad_v) {
  const int64_t n = row.head_dimension;
  std::vector<double> o(n);
  double lse = 0;
  const std::vector<double> p = attend_row(row, o.data(), lse);
  const double delta = dot(grad_o, o.data(), n);
  for (size_t i = 0; i < p.size(); ++i) {
    const double grad_score = row.scale * p[i] * (dot(grad_o, row.v[i], n) - delta);
    for (int64_t e = 0; e < n; ++e) {
      grad_q[e] += grad_score * row.k[i][e];
      grad_k[i][e] += grad_score * row.q[e];
      grad_v[i][e] += p[i] * grad_o[e];
    }
  }
}

} // namespace nsa::reference
