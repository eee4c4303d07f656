#pragma once
// One case's verdicts: a line when all is well, every failed tensor otherwise. One thread.

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
  // `plain_error` of the plain BF16 evaluation is asked for only beyond the tolerance.
  void verdict(const char* what, const ErrorNorm& norm, double tolerance,
               const std::function<double()>& plain_error = {});
  void expect(const std::string& what, bool good);
  // Prints the line with the time since the report was made; true when nothing failed.
  bool finish() const;

private:
  std::string title_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int failures_ = 0;
  double worst_ = 0.0;
  double worst_value_ = 0.0;
  const char* worst_name_ = "-";
};

// Hashes of the same results, of two runs.
void expect_same(const std::vector<AttentionCase::Hash>& first,
                 const std::vector<AttentionCase::Hash>& now, const std::string& what,
                 Report& report);

} // namespace nsa::kernels::check
