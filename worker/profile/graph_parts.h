// Parts of the kernels of a recorded graph. No scope is open when a graph is replayed, so that they
// are noted while it is recorded, which happens once in an attempt.
#pragma once

#include "worker/graphs/graph.h"
#include "worker/profile/node_parts.h"

#include <memory>
#include <string>
#include <vector>

namespace nsa::profile {

// In the order of their launches, without those that part_of_attention_kernel() knows, which may
// run beside each other.
struct GraphParts {
  std::vector<std::optional<ops::StepPart>> kernels;
};

// Listens to scopes while it lives, in the place of whoever listened before. Training thread; the
// scopes may be those of autograd's thread, for which the training thread waits.
class GraphPartRecorder : public ops::PartListener {
public:
  explicit GraphPartRecorder(runtime::Recorder& recorder);
  ~GraphPartRecorder() override;
  GraphPartRecorder(const GraphPartRecorder&) = delete;
  GraphPartRecorder& operator=(const GraphPartRecorder&) = delete;

  void begin(ops::StepPart part) override;
  void end() noexcept override;
  // Of what was recorded since the last call. The recording must not have ended yet.
  std::shared_ptr<const GraphParts> take();

  // For the callbacks that see autograd's nodes.
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

// A recorder, one a process, whose graphs know the parts of their kernels: the replay of one is a
// range of ScopeRecorder where there is one. Lives as long as one tape is recorded; its graphs live
// on.
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
