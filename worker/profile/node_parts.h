// Finds the part of a step in which a node of autograd's graph was created. Each thread numbers its
// nodes in sequence, so the scope that was open at a number gives the node's part. Any thread may
// call note(). Call part_of() only when no thread calls note() any more.
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
  // Nodes of `thread` from this number on belong to `part` (at::RecordFunction numbers threads).
  void note(uint64_t thread, uint64_t sequence, std::optional<ops::StepPart> part);
  // Nodes that accumulate the gradient of a leaf have no number. They belong to the reduction.
  std::optional<ops::StepPart> part_of(uint64_t thread, int64_t sequence) const;

private:
  struct Change {
    uint64_t sequence;
    std::optional<ops::StepPart> part;
  };
  mutable std::mutex mutex_;
  std::map<uint64_t, std::vector<Change>> threads_; // sorted by number
};

} // namespace nsa::profile
