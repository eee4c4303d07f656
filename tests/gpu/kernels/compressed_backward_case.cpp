#include "tests/gpu/kernels/compressed_backward_case.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "bench/kernel_cases/case_options.h"
#include "bench/kernel_cases/measure.h"
#include "tests/gpu/kernels/report.h"

namespace nsa::kernels::check {
namespace {

using Values = std::vector<__nv_bfloat16>;

Values query_gradient(AttentionCase& c) {
  c.poison();
  c.forward();
  c.workspace.poison();
  c.backward();
  cuda_check(cudaDeviceSynchronize(), "backward");
  return c.d_q.to_host();
}

// Rows of dQ: heads of tokens of sequences.
struct Rows {
  const AttentionShape& shape;
  std::size_t heads() const { return static_cast<std::size_t>(shape.groups * shape.heads); }
  std::size_t width() const { return static_cast<std::size_t>(shape.head_dim); }
  bool is_finite(const Values& d_q, std::size_t row) const {
    for (std::size_t i = 0; i < width(); ++i)
      if (!std::isfinite(__bfloat162float(d_q[row * width() + i]))) return false;
    return true;
  }
  bool is_all_nan(const Values& d_q, std::size_t row) const {
    for (std::size_t i = 0; i < width(); ++i)
      if (!std::isnan(__bfloat162float(d_q[row * width() + i]))) return false;
    return true;
  }
  bool is_same(const Values& a, const Values& b, std::size_t row) const {
    return std::memcmp(&a[row * width()], &b[row * width()], width() * sizeof(a[0])) == 0;
  }
};

template <typename T> void set(DeviceBuffer<T>& buffer, std::size_t place, T value) {
  std::vector<T> host = buffer.to_host();
  host[place] = value;
  buffer.from_host(host);
}

// Tokens that see a column of 128 keys, and the tokens of a key.
constexpr std::size_t kReach = 128 * kCompressStride + kCompressLength;

} // namespace

bool run_invalid_case(const CaseOptions& options) {
  Report report(title_of("one compressed backward, invalid values", options));
  const AttentionShape& shape = options.shape;
  const Rows rows = {shape};
  CaseOptions other = options;
  other.tuning.compressed_backward_from = kMaxSequence + 1; // two kernels
  const Values before = [&] {
    AttentionCase c(options);
    return query_gradient(c);
  }();
  // In the last sequence, its first group, head 2.
  const int token = shape.sequence * 2 / 3;
  const auto token_row = static_cast<std::size_t>((shape.batch - 1) * shape.sequence + token);
  const std::size_t query_row = token_row * rows.heads() + 2;
  const std::size_t key_row = token_row * static_cast<std::size_t>(shape.groups);
  const char* names[] = {"q", "k", "v", "d_out", "gate"};
  for (int which = 0; which < 5; ++which) {
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      const auto spoil = [&](AttentionCase& c) {
        const std::size_t query = query_row * rows.width() + 5, key = key_row * rows.width() + 5;
        const __nv_bfloat16 value = __float2bfloat16(bad);
        if (which == 0) set(c.q, query, value);
        if (which == 1) set(c.k[0], key, value);
        if (which == 2) set(c.v[0], key, value);
        if (which == 3) set(c.d_out, query, value);
        if (which == 4) set(c.gates, query_row * 3, bad);
      };
      AttentionCase one(options), two(other);
      spoil(one);
      spoil(two);
      const Values in_one = query_gradient(one), in_two = query_gradient(two);
      const std::string what = std::string(names[which]) + (std::isnan(bad) ? " NaN" : " infinite");
      std::size_t hidden = 0, changed = 0, invalid = 0;
      for (std::size_t row = 0; row < one.rows; ++row) {
        const bool valid = rows.is_finite(in_one, row);
        if (!valid) ++invalid;
        const std::size_t own_token = row / rows.heads();
        const bool key = which == 1 || which == 2;
        // Two kernels may give NaN to tokens that do not see the key.
        const bool sees = !key || own_token >= token_row + kCompressLength;
        if (sees && !rows.is_finite(in_two, row) && !rows.is_all_nan(in_one, row)) ++hidden;
        // A key of the last sequence reaches tokens of its group from the start of its column on.
        const bool of_group = row % rows.heads() < static_cast<std::size_t>(shape.heads);
        const bool near =
            of_group && (key ? own_token + kReach > token_row : own_token == token_row);
        if (!near && !rows.is_same(in_one, before, row)) ++changed;
      }
      report.expect(what + " is hidden in " + std::to_string(hidden) + " rows", hidden == 0);
      report.expect(what + " changes " + std::to_string(changed) + " other rows", changed == 0);
      report.expect(what + " reaches no row", invalid > 0);
    }
  }
  return report.finish();
}

bool run_future_gradient_case(const CaseOptions& options) {
  CaseOptions single = options;
  single.shape.batch = 1;
  Report report(title_of("one compressed backward, future tokens", single));
  const Rows rows = {single.shape};
  AttentionCase c(single);
  const Values before = query_gradient(c);
  const int sequence = single.shape.sequence;
  for (const int cut : {40, sequence / 3, sequence * 3 / 5, sequence - 1}) {
    AttentionCase changed(single);
    uint64_t seed = (single.seed + 1) * 16;
    for (DeviceBuffer<__nv_bfloat16>* x :
         {&changed.q, &changed.d_out, &changed.k[0], &changed.v[0]}) {
      const std::size_t from =
          x->size() / static_cast<std::size_t>(sequence) * static_cast<std::size_t>(cut);
      fill_normal(x->get() + from, x->size() - from, 20.0f, seed++);
    }
    const Values after = query_gradient(changed);
    std::size_t differ = 0;
    for (std::size_t row = 0; row < static_cast<std::size_t>(cut) * rows.heads(); ++row)
      if (!rows.is_same(before, after, row)) ++differ;
    report.expect("dQ of " + std::to_string(differ) + " rows depends on tokens from " +
                      std::to_string(cut) + " on",
                  differ == 0);
    report.expect("tokens from " + std::to_string(cut) + " on change nothing at all",
                  !rows.is_same(before, after, c.rows - 1));
  }
  return report.finish();
}

} // namespace nsa::kernels::check
