#include "common/manifest/manifest.h"

#include <algorithm>

namespace nsa::manifest {

uint64_t oldest_of_the_last(std::vector<Kept> present, int keep_last) {
  std::erase_if(present, [](const Kept& c) { return !c.verified; });
  const auto wanted = static_cast<size_t>(std::max(1, keep_last));
  if (present.size() < wanted) return 0;
  std::sort(present.begin(), present.end(),
            [](const Kept& a, const Kept& b) { return a.step > b.step; });
  return present[wanted - 1].step;
}

// Checkpoints that are kept, newest first:
//   1. the newest `keep_last` verified ones (at least one, whatever the caller says), so that a
//      damaged checkpoint never displaces a good one;
//   2. every multiple of `keep_every_steps`;
//   3. the newest verified finite one, which (1) may not contain after a run has diverged;
//   4. an unverified one until `keep_last` verified ones are newer, because until then it may be
//      the one that is needed.
std::vector<uint64_t> steps_to_delete(std::vector<Kept> present, int keep_last,
                                      uint64_t keep_every_steps) {
  std::sort(present.begin(), present.end(),
            [](const Kept& a, const Kept& b) { return a.step > b.step; });
  const uint64_t oldest = oldest_of_the_last(present, keep_last);
  bool finite_seen = false;
  std::vector<uint64_t> deletable;
  for (const Kept& c : present) {
    bool keep = c.step >= oldest;
    if (keep_every_steps > 0 && c.step % keep_every_steps == 0) keep = true;
    if (c.verified && c.finite && !finite_seen) {
      finite_seen = true;
      keep = true;
    }
    if (!keep) deletable.push_back(c.step);
  }
  return deletable;
}

} // namespace nsa::manifest
