// Which part of a step a node of autograd's graph was made for. A node carries a number that its
// thread counts up, so that the open scope at each number tells it. Any thread notes; whoever looks
// up does so once nobody notes any more.
#pragma once

#include "nsa_model/ops/step_part.h"

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace nsa::profile {

class NodeParts {
public:
  // From this number on, nodes of `thread` (as at::RecordFunction counts threads) are of `part`.
  void note(uint64_t thread, uint64_t sequence, std::optional<ops::StepPart> part);
  // Nodes that sum up the gradient of a leaf have no number: their part is the reduction's.
  std::optional<ops::StepPart> part_of(uint64_t thread, int64_t sequence) const;

private:
  struct Change {
    uint64_t sequence;
    std::optional<ops::StepPart> part;
  };
  mutable std::mutex mutex_;
  std::map<uint64_t, std::vector<Change>> threads_; // each in the order of numbers
};

} // namespace nsa::profile
