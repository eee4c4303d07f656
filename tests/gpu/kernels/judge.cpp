#include "tests/gpu/kernels/judge.h"

#include <cmath>
#include <cstdio>

namespace nsa::kernels::check {
namespace {

int failed = 0;

template <typename T> double error_of(const std::vector<T>& value, const Doubles& expected) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = to_double(value[i]) - expected[i];
    difference += error * error;
    norm += expected[i] * expected[i];
  }
  return std::sqrt(norm > 0.0 ? difference / norm : difference);
}

} // namespace

double relative_error(const std::vector<Bf16>& value, const Doubles& expected) {
  return error_of(value, expected);
}
double relative_error(const std::vector<float>& value, const Doubles& expected) {
  return error_of(value, expected);
}

void report(const std::string& what, double error, double limit) {
  const bool good = error <= limit; // false for NaN
  if (!good) ++failed;
  std::printf("  %-44s %s relative %.3g, limit %.3g\n", what.c_str(), good ? "ok  " : "FAIL", error,
              limit);
}

void expect_bf16(const std::string& what, const DeviceBuffer<Bf16>& value,
                 const Doubles& expected) {
  std::vector<Bf16> best(expected.size());
  for (std::size_t i = 0; i < best.size(); ++i)
    best[i] = __double2bfloat16(expected[i]);
  report(what, relative_error(value.to_host(), expected),
         1.5 * relative_error(best, expected) + 1e-12);
}

void expect_fp32(const std::string& what, const DeviceBuffer<float>& value,
                 const Doubles& expected) {
  report(what, relative_error(value.to_host(), expected), 1e-5);
}

int failures() {
  return failed;
}

} // namespace nsa::kernels::check
