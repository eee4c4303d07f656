#pragma once
// Every correctness case of the attention kernels. One thread.

#include <string>

#include "bench/kernel_cases/case_options.h"

namespace nsa::kernels::check {

struct CheckOptions {
  double seconds = 1e9;
  std::string match;   // only cases whose names hold it
  std::string without; // and do not hold this
  bool portable = false;
};
// Runs the cases, the most telling first, until the time is over. The exit code.
int check_all(const CheckOptions& wanted);

} // namespace nsa::kernels::check
