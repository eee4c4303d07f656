// During its lifetime, ScopeRecorder turns the scopes of all threads (nsa_model/ops/step_part.h)
// into ranges of LibTorch's profiler. So each kernel has a range that launched it. On a GPU the
// scopes are NVTX ranges as well. Autograd's nodes belong to the scope that created them. Only one
// exists at a time; the training thread makes and destroys it between steps.
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

  void stop(); // stops listening and keeps the data

  const NodeParts& nodes() const { return nodes_; }
  // Returns the graph whose replay has a range of this name; nullptr if the range is not a replay.
  std::shared_ptr<const GraphParts> replayed(const std::string& name) const;

  static ScopeRecorder* current(); // nullptr: none exists
  // The at::RecordScope of its ranges. LibTorch itself does not use it in training.
  static uint8_t scope_kind();

private:
  void open(std::string_view name, std::optional<ops::StepPart> part);

  NodeParts nodes_;
  bool listens_ = true;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const GraphParts>> replayed_; // each graph once; a range's name has
                                                            // its index
};

} // namespace nsa::profile
