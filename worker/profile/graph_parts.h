// Parts of the kernels of a captured graph. No scope is open when a graph is replayed, so the parts
// are recorded during capture, which happens once in an attempt.
#pragma once

#include "worker/graphs/graph.h"
#include "worker/profile/node_parts.h"

#include <memory>
#include <string>
#include <vector>

namespace nsa::profile {

// Parts in the order of kernel launches. Kernels that part_of_attention_kernel() knows are left
// out, because they may run concurrently.
struct GraphParts {
  std::vector<std::optional<ops::StepPart>> kernels;
};

// Listens to scopes during its lifetime, and replaces the previous listener. Training thread only.
// The scopes may be those of autograd's thread, for which the training thread waits.
class GraphPartRecorder : public ops::PartListener {
public:
  explicit GraphPartRecorder(runtime::Recorder& recorder);
  ~GraphPartRecorder() override;
  GraphPartRecorder(const GraphPartRecorder&) = delete;
  GraphPartRecorder& operator=(const GraphPartRecorder&) = delete;

  void begin(ops::StepPart part) override;
  void end() noexcept override;
  // Returns what was captured since the last call. Call it before the capture ends.
  std::shared_ptr<const GraphParts> take();

  // The callbacks of autograd's nodes call these.
  void begin_node(uint64_t forward_thread, int64_t sequence);
  void end_node();

private:
  void settle();
  void change(std::optional<ops::StepPart> part);

  runtime::Recorder& recorder_;
  ops::PartListener* before_;
  uint64_t callback_ = 0;
  std::vector<std::optional<ops::StepPart>> open_;
  NodeParts nodes_;
  GraphParts parts_;
};

// Wraps a recorder, so that its graphs know the parts of their kernels. While a ScopeRecorder
// exists, each replay is one of its ranges. A process has one TiedRecorder at a time, during the
// capture of one tape; its graphs may outlive it.
class TiedRecorder : public runtime::Recorder {
public:
  explicit TiedRecorder(runtime::Recorder& inner) : inner_(inner), parts_(inner) {}
  void begin() override { inner_.begin(); }
  std::unique_ptr<runtime::Graph> end() override;
  void abandon() noexcept override { inner_.abandon(); }

private:
  runtime::Recorder& inner_;
  GraphPartRecorder parts_;
};

} // namespace nsa::profile
