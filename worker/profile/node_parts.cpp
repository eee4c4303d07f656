#include "worker/profile/node_parts.h"

#include <algorithm>

namespace nsa::profile {

void NodeParts::note(uint64_t thread, uint64_t sequence, std::optional<ops::StepPart> part) {
  const std::lock_guard lock(mutex_);
  std::vector<Change>& changes = threads_[thread];
  if (!changes.empty() && changes.back().sequence == sequence)
    changes.back().part = part; // no node was created between the two
  else
    changes.push_back({sequence, part});
}

std::optional<ops::StepPart> NodeParts::part_of(uint64_t thread, int64_t sequence) const {
  if (sequence < 0) return ops::StepPart::kReduction; // UINT64_MAX: AccumulateGrad
  const std::lock_guard lock(mutex_);
  const auto found = threads_.find(thread);
  if (found == threads_.end()) return std::nullopt;
  const std::vector<Change>& changes = found->second;
  const auto behind = std::upper_bound(
      changes.begin(), changes.end(), static_cast<uint64_t>(sequence),
      [](uint64_t number, const Change& change) { return number < change.sequence; });
  return behind == changes.begin() ? std::nullopt : std::prev(behind)->part;
}

} // namespace nsa::profile
