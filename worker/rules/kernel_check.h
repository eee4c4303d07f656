// KernelCheck: compares the kernels that really ran with the plan of kernels. It reads integers on
// the host after the first step, at evaluations and at the end, so it does not slow a step.
// Training thread only.
#pragma once

#include "common/base/result.h"
#include "nsa_model/choice/kernel_plan.h"

#include <functional>

namespace nsa::train {

class KernelCheck {
public:
  // `read`: the counts of this process (ops::kernel_counts()); what ran before is not looked at.
  KernelCheck(choice::KernelPlan plan, std::function<choice::KernelCounts()> read);

  // Everything that ran since the check before was of this pass. kConflict where the plan says
  // otherwise.
  Status ran(choice::Pass pass);
  // What ran since the check before is not looked at.
  void skip() { before_ = read_(); }

private:
  choice::KernelPlan plan_;
  std::function<choice::KernelCounts()> read_;
  choice::KernelCounts before_;
};

} // namespace nsa::train
