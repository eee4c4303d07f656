#pragma once
// The choice of blocks against float64 scores of the same inputs. One thread.

#include "tests/gpu/kernels/branch_oracle.h"
#include "tests/gpu/kernels/report.h"

namespace nsa::kernels::check {

// Invariants of the selection, and that no block was left out whose score is clearly above one
// taken. Of every row, however long the sequence.
void check_selection(const AttentionCase& c, const BranchOracle& compressed, Report& report);

} // namespace nsa::kernels::check
