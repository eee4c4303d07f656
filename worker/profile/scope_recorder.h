// ScopeRecorder: while it lives, the scopes of all threads (nsa_model/ops/step_part.h) are ranges
// of LibTorch's profiler, so that a kernel is tied to the range that launched it; on a GPU they are
// NVTX ranges as well. Nodes of autograd are tied to the scope that made them. One at a time, made
// and ended by the training thread between steps.
#pragma once

#include "worker/profile/graph_parts.h"
#include "worker/profile/node_parts.h"

#include <memory>

namespace nsa::profile {

class ScopeRecorder : public ops::PartListener {
public:
  ScopeRecorder();
  ~ScopeRecorder() override { stop(); }
  ScopeRecorder(const ScopeRecorder&) = delete;
  ScopeRecorder& operator=(const ScopeRecorder&) = delete;

  void begin(ops::StepPart part) override;
  void end() noexcept override;
  void begin_replay(std::shared_ptr<const GraphParts> graph);

  void stop(); // listens no more; what it knows stays

  const NodeParts& nodes() const { return nodes_; }
  // Of the replay whose range has this name; nullptr: it is no replay's.
  std::shared_ptr<const GraphParts> replayed(const std::string& name) const;

  static ScopeRecorder* current(); // nullptr: none lives
  // The kind of its ranges, an at::RecordScope: none of LibTorch's own that comes up in training.
  static uint8_t scope_kind();

private:
  void open(std::string_view name, std::optional<ops::StepPart> part);

  NodeParts nodes_;
  bool listens_ = true;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const GraphParts>> replayed_; // each once; its place is in the name
};

} // namespace nsa::profile
