#include "common/manifest/manifest.h"

#include <algorithm>

namespace nsa::manifest {

// What is kept, newest first:
//   1. the newest `keep_last` verified ones (at least one, whatever the caller says), so that a
//      damaged checkpoint never pushes a good one out;
//   2. every multiple of `keep_every_steps`;
//   3. the newest verified-finite one, which (1) may not hold when a run has diverged;
//   4. an unverified one until `keep_last` verified ones are newer than it: before that nobody
//      knows whether it is the one that will be needed.
std::vector<uint64_t> steps_to_delete(std::vector<Kept> present, int keep_last,
                                      uint64_t keep_every_steps) {
  std::sort(present.begin(), present.end(),
            [](const Kept& a, const Kept& b) { return a.step > b.step; });
  const int wanted = std::max(1, keep_last);
  int verified_seen = 0;
  bool finite_seen = false;
  std::vector<uint64_t> deletable;
  for (const Kept& c : present) {
    bool keep = verified_seen < wanted;
    if (keep_every_steps > 0 && c.step % keep_every_steps == 0) keep = true;
    if (c.verified && c.finite && !finite_seen) {
      finite_seen = true;
      keep = true;
    }
    if (c.verified) ++verified_seen;
    if (!keep) deletable.push_back(c.step);
  }
  return deletable;
}

} // namespace nsa::manifest
