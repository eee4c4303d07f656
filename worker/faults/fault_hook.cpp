#include "worker/faults/fault_hook.h"

#include "common/base/log.h"
#include "worker/faults/acts.h"

namespace nsa::train {

using progress::Phase;
using spec::FaultPoint;

FaultHook::FaultHook(const Injection& injection, std::filesystem::path run_folder, link::Link& link,
                     std::function<void()> stall_device)
    : injection_(injection), point_(spec::fault_row(injection.fault).point),
      run_folder_(std::move(run_folder)), link_(link), stall_device_(std::move(stall_device)) {}

// Not every step has a checkpoint's all-gather, so kStateGather takes the first one at its step or
// later. The peers' buffers then hold values of this step and of older ones.
bool FaultHook::strikes(FaultPoint point, uint64_t step) {
  if (point_ != point || struck_) return false; // only the thread of this point uses struck_
  if (point == FaultPoint::kStateGather ? step < injection_.step : step != injection_.step)
    return false;
  struck_ = true;
  announce(step);
  return true;
}

void FaultHook::enter(Phase phase, uint64_t step, uint64_t micro_step) {
  const bool strikes_now =
      (phase == Phase::kForward && micro_step == 0 && strikes(FaultPoint::kForward, step)) ||
      (phase == Phase::kOptimizer && strikes(FaultPoint::kUpdate, step)) ||
      (phase == Phase::kAllGatherState && strikes(FaultPoint::kStateGather, step));
  if (strikes_now) act_on_training_thread(injection_.fault, stall_device_);
}

bool FaultHook::poisons(uint64_t step) {
  return strikes(FaultPoint::kLoss, step);
}

bool FaultHook::skips_collectives(uint64_t step) {
  return strikes(FaultPoint::kReduction, step);
}

void FaultHook::stall_loader(uint64_t step, const std::function<bool()>& stopping) {
  if (strikes(FaultPoint::kLoader, step)) inject_data_stall(stopping);
}

void FaultHook::announce(uint64_t step) {
  Injection now = injection_;
  now.step = step;
  const std::string kind = spec::text_of(now.fault);
  log::warning(
      "inject", "a fault is injected on purpose",
      {{"kind", kind}, {"rank", std::to_string(now.rank)}, {"step", std::to_string(now.step)}});
  if (auto status = record_injection(run_folder_, now); !status)
    log::error("inject", "the injected fault is not written down: " + status.error().what);
  link_.send(wire::RankInjected{now.rank, now.step, kind});
  link_.flush(std::chrono::seconds(2));
}

} // namespace nsa::train
