#include "worker/rules/kernel_check.h"

namespace nsa::train {

KernelCheck::KernelCheck(choice::KernelPlan plan, std::function<choice::KernelCounts()> read)
    : plan_(std::move(plan)), read_(std::move(read)), before_(read_()) {}

Status KernelCheck::ran(choice::Pass pass) {
  const choice::KernelCounts now = read_();
  choice::KernelCounts since{};
  for (size_t part = 0; part < choice::kParts; ++part)
    for (size_t backend = 0; backend < choice::kBackends; ++backend)
      since[part][backend] = now[part][backend] - before_[part][backend];
  before_ = now;
  const std::string differs = choice::difference(plan_, since, pass);
  if (differs.empty()) return {};
  return fail(
      ErrorCode::kConflict, "other kernels ran than were planned: " + differs,
      "train without our kernels: set toggles.attention.kernels = \"aten\" and "
      "toggles.layers.kernels = \"aten\". Report the rank's log line \"kernels in effect\"");
}

} // namespace nsa::train
