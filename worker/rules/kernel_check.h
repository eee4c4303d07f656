// KernelCheck compares the kernels that really ran with the plan of kernels. It reads integers on
// the host after the first step, at evaluations and at the end, so it does not slow a step.
// Training thread only.
#pragma once

#include "common/base/result.h"
#include "nsa_model/choice/kernel_plan.h"

#include <functional>

namespace nsa::train {

class KernelCheck {
public:
  // `read` returns the counts of this process (ops::kernel_counts()). Kernels that ran before are
  // ignored.
  KernelCheck(choice::KernelPlan plan, std::function<choice::KernelCounts()> read);

  // Checks everything that ran since the previous check, which must all be of this pass. Error:
  // kConflict if the plan differs.
  Status ran(choice::Pass pass);
  // Ignores everything that ran since the previous check.
  void skip() { before_ = read_(); }

private:
  choice::KernelPlan plan_;
  std::function<choice::KernelCounts()> read_;
  choice::KernelCounts before_;
};

} // namespace nsa::train
