// The branches of NSA that a run has. `nsa.branches` is a list of texts, so that one that is no
// branch is refused under its key; everybody else asks here. Pure.
#pragma once

#include "common/spec/run_spec.h"

#include <algorithm>

namespace nsa::spec {

using choice::Branch;

inline bool has(const NsaSection& nsa, Branch branch) {
  return std::find(nsa.branches.begin(), nsa.branches.end(), name_of(branch)) != nsa.branches.end();
}

} // namespace nsa::spec
