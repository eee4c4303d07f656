#pragma once
// A small problem against the project's oracle (nsa_model/reference, float64 loops on the CPU),
// which shares no code with the kernels or with their own oracle on the device. One thread,
// seconds.

#include <utility>
#include <vector>

#include "bench/kernel_cases/attention_case.h"

namespace nsa::kernels::check {

struct NamedError {
  const char* name;
  double relative; // ||value - reference|| / ||reference||; NaN when a value is
  bool gradient;
};

// Runs the kernels and the oracle on the kernels' own selection.
std::vector<NamedError> compare_with_reference(const CaseOptions& options);

} // namespace nsa::kernels::check
