#pragma once
// Compares a small problem with the project's oracle (nsa_model/reference, float64 loops on the
// CPU). It shares no code with the kernels or with their other oracle on the device. One thread;
// takes seconds.

#include <utility>
#include <vector>

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

struct NamedError {
  const char* name;
  double relative; // ||value - reference|| / ||reference||; NaN if a value is NaN
  bool gradient;
};

// Runs the kernels, and the oracle with the blocks that the kernels selected.
std::vector<NamedError> compare_with_reference(const CaseOptions& options);

} // namespace nsa::kernels::check
