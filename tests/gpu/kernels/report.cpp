#include "tests/gpu/kernels/report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace nsa::kernels::check {
namespace {

// BF16 itself may lose more than the tolerance: with one-hot scores a gradient is a small
// difference that contains the rounded output. Then a gradient's error may be this many times that
// of the plain BF16 evaluation.
constexpr double kPlainFactor = 1.5;

} // namespace

Report::Report(std::string title) : title_(std::move(title)) {}

void Report::verdict(const char* what, const ErrorNorm& norm, double tolerance,
                     const std::function<double()>& plain_error) {
  if (plain_error && norm.relative > tolerance) {
    const double plain = plain_error();
    std::printf("  over %.4f: %s relative %.5f, plain BF16 %.5f\n", tolerance, what, norm.relative,
                plain);
    tolerance = std::max(tolerance, kPlainFactor * plain);
  }
  const double part = norm.relative / tolerance;
  if (norm.invalid != 0 || !(norm.relative <= tolerance)) {
    ++failures_;
    std::printf("  FAIL %-10s relative %.5f (limit %.4f) worst %.4f invalid %zu\n", what,
                norm.relative, tolerance, norm.worst, norm.invalid);
  }
  if (!(part <= worst_)) {
    worst_ = part;
    worst_name_ = what;
    worst_value_ = norm.relative;
  }
}

void Report::expect(const std::string& what, bool good) {
  if (good) return;
  ++failures_;
  std::printf("  FAIL %s\n", what.c_str());
}

bool Report::finish() const {
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  std::printf("%s %-44s %5.2f s  nearest its limit: %s %.5f (%.0f %%)\n",
              failures_ == 0 ? "ok  " : "FAIL", title_.c_str(), seconds, worst_name_, worst_value_,
              100.0 * worst_);
  std::fflush(stdout);
  return failures_ == 0;
}

void expect_same(const std::vector<AttentionCase::Hash>& first,
                 const std::vector<AttentionCase::Hash>& now, const std::string& what,
                 Report& report) {
  for (std::size_t i = 0; i < first.size(); ++i)
    report.expect(what + " gives other bits: " + first[i].name, now.at(i) == first[i]);
}

} // namespace nsa::kernels::check
