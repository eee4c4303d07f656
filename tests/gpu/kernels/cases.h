#pragma once
// Every correctness case of the attention kernels. One thread.

#include <string>

#include "bench/kernel_cases/case_options.h"

namespace nsa::kernels::check {

struct CheckOptions {
  double seconds = 1e9;
  std::string match;   // only cases whose names contain this
  std::string without; // only cases whose names do not contain this
  bool portable = false;
};
// Runs the cases, the most important first, until the time is over. Returns the exit code.
int check_all(const CheckOptions& wanted);

} // namespace nsa::kernels::check
