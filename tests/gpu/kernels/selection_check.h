#pragma once
// The choice of blocks against float64 scores of the same inputs. One thread.

#include "tests/gpu/kernels/branch_oracle.h"
#include "tests/gpu/kernels/report.h"

namespace nsa::kernels::check {

// Rows of indices against float64 scores of their blocks.
class SelectionJudge {
public:
  // `slots`: the row's 16 indices; `scores`: of all blocks; `all_equal`: so that the lowest blocks
  // must be taken.
  void add(const int32_t* slots, const double* scores, int token, int blocks, bool all_equal);
  void tell(Report& report) const;

private:
  std::size_t broken_ = 0, wrong_ = 0, scored_ = 0;
  std::size_t swapped_ = 0; // near the cut, but further than FP32 should be off
};

// Invariants of the selection, and that no block was left out whose score is clearly above one
// taken. Of every row, however long the sequence.
void check_selection(const AttentionCase& c, const BranchOracle& compressed, Report& report);

} // namespace nsa::kernels::check
