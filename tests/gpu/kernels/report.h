#pragma once
// The verdicts on one case: one line if all tensors are good, otherwise each failed tensor. One
// thread.

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bench/kernel_cases/attention_case.h"
#include "bench/kernel_cases/measure.h"

namespace nsa::kernels::check {

class Report {
public:
  explicit Report(std::string title);
  // `plain_error` computes the error of the plain BF16 evaluation. It is called only if the
  // tolerance is exceeded.
  void verdict(const char* what, const ErrorNorm& norm, double tolerance,
               const std::function<double()>& plain_error = {});
  void expect(const std::string& what, bool good);
  // Prints the line with the time since the report was created. Returns true if nothing failed.
  bool finish() const;

private:
  std::string title_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int failures_ = 0;
  double worst_ = 0.0;
  double worst_value_ = 0.0;
  const char* worst_name_ = "-";
};

// Compares the hashes of the same results in two runs.
void expect_same(const std::vector<AttentionCase::Hash>& first,
                 const std::vector<AttentionCase::Hash>& now, const std::string& what,
                 Report& report);

} // namespace nsa::kernels::check
