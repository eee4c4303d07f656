// FaultHook performs the fault of a run on the chosen rank, at the point that the table of faults
// names (common/spec/fault_table.h). First it records the fault and tells the shim. Then it waits
// (bounded) until the message has been sent, because a stopped or dead process cannot send it.
//
// Training thread only, except stall_loader().
#pragma once

#include "worker/faults/injection.h"
#include "worker/link/link.h"
#include "worker/rules/step_hook.h"

#include <functional>

namespace nsa::train {

class FaultHook : public StepHook {
public:
  FaultHook(const Injection& injection, std::filesystem::path run_folder, link::Link& link,
            std::function<void()> stall_device);

  void enter(progress::Phase phase, uint64_t step, uint64_t micro_step) override;
  bool poisons(uint64_t step) override;
  bool skips_collectives(uint64_t step) override;

  // The loader's thread calls it before the first batch of a step. In the step of a data stall it
  // returns only when `stopping` says that the loader is being destroyed.
  void stall_loader(uint64_t step, const std::function<bool()>& stopping);

private:
  bool strikes(spec::FaultPoint point, uint64_t step);
  void announce(uint64_t step);

  const Injection injection_;
  const spec::FaultPoint point_;
  const std::filesystem::path run_folder_;
  link::Link& link_;
  const std::function<void()> stall_device_;
  bool struck_ = false;
};

} // namespace nsa::train
