// Sizes that the formulas of this library share. Pure functions, any thread.
#pragma once

#include "common/spec/run_spec.h"

#include <cstdint>

namespace nsa::estimate {

inline constexpr int64_t kFp32 = 4, kBf16 = 2, kIndex = 4; // bytes

inline int64_t branch_count(const spec::RunSpec& spec) {
  return static_cast<int64_t>(spec.nsa.branches.size());
}

} // namespace nsa::estimate
