#pragma once
// Compares the choice of blocks with float64 scores of the same inputs. One thread.

#include "tests/gpu/kernels/branch_oracle.h"
#include "tests/gpu/kernels/report.h"

namespace nsa::kernels::check {

// Compares rows of indices with float64 scores of their blocks.
class SelectionJudge {
public:
  // `slots` has the row's 16 indices, and `scores` has the scores of all blocks. With `all_equal`
  // the lowest blocks must be taken.
  void add(const int32_t* slots, const double* scores, int token, int blocks, bool all_equal);
  void tell(Report& report) const;

private:
  std::size_t broken_ = 0, wrong_ = 0, scored_ = 0;
  std::size_t swapped_ = 0; // near the cut, but by more than FP32 should differ
};

// Checks the invariants of the selection, and that no omitted block has a clearly higher score than
// a taken one. It checks every row, also of long sequences.
void check_selection(const AttentionCase& c, const BranchOracle& compressed, Report& report);

} // namespace nsa::kernels::check
