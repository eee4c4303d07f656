// Tells which branches of NSA a run has. No I/O.
#pragma once

#include "common/spec/run_spec.h"

#include <algorithm>

namespace nsa::spec {

inline bool has(const NsaSection& nsa, Branch branch) {
  return std::find(nsa.branches.begin(), nsa.branches.end(), branch) != nsa.branches.end();
}

} // namespace nsa::spec
