// KernelCheck: holds what really ran against the plan of kernels. Counts are integers on the host,
// and are compared behind the first step, at evaluations and at the end: it costs a step nothing.
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

private:
  choice::KernelPlan plan_;
  std::function<choice::KernelCounts()> read_;
  choice::KernelCounts before_;
};

} // namespace nsa::train
