#include "worker/profile/graph_parts.h"

#include "worker/profile/kernel_parts.h"
#include "worker/profile/scope_recorder.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <cxxabi.h>

namespace nsa::profile {

using ops::StepPart;

namespace {

// The callbacks have no other way to find the current capture.
std::atomic<GraphPartRecorder*> g_recorder{nullptr};

std::unique_ptr<at::ObserverContext> on_node(const at::RecordFunction& function) {
  if (GraphPartRecorder* recorder = g_recorder.load())
    recorder->begin_node(function.forwardThreadId(), function.seqNr());
  return nullptr;
}
void on_node_end(const at::RecordFunction&, at::ObserverContext*) {
  if (GraphPartRecorder* recorder = g_recorder.load()) recorder->end_node();
}

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : name;
}

} // namespace

GraphPartRecorder::GraphPartRecorder(runtime::Recorder& recorder)
    : recorder_(recorder), before_(ops::part_listener()) {
  g_recorder.store(this);
  // The callback is global, because callbacks of this thread would not see autograd's thread.
  callback_ = at::addGlobalCallback(at::RecordFunctionCallback(on_node, on_node_end)
                                        .scopes({at::RecordScope::BACKWARD_FUNCTION}));
  ops::listen_to_parts(this);
}

GraphPartRecorder::~GraphPartRecorder() {
  ops::listen_to_parts(before_);
  at::removeCallback(callback_);
  g_recorder.store(nullptr);
}

// Assigns the kernels launched since the last change to the part that was innermost.
void GraphPartRecorder::settle() {
  const std::optional<StepPart> part = open_.empty() ? std::nullopt : open_.back();
  for (const std::string& name : recorder_.take_launched())
    if (!part_of_attention_kernel(demangled(name))) parts_.kernels.push_back(part);
}

void GraphPartRecorder::change(std::optional<StepPart> part) {
  nodes_.note(at::RecordFunction::currentThreadId(), at::sequence_number::peek(), part);
}

void GraphPartRecorder::begin(StepPart part) {
  settle();
  open_.emplace_back(part);
  change(part);
}

// The scope may have been opened before this object began to listen.
void GraphPartRecorder::end() noexcept {
  settle();
  if (open_.empty()) return;
  open_.pop_back();
  change(open_.empty() ? std::nullopt : open_.back());
}

void GraphPartRecorder::begin_node(uint64_t forward_thread, int64_t sequence) {
  settle();
  open_.push_back(nodes_.part_of(forward_thread, sequence));
}

void GraphPartRecorder::end_node() {
  settle();
  if (!open_.empty()) open_.pop_back();
}

std::shared_ptr<const GraphParts> GraphPartRecorder::take() {
  settle();
  return std::make_shared<const GraphParts>(std::exchange(parts_, {}));
}

namespace {

class TiedGraph : public runtime::Graph {
public:
  TiedGraph(std::unique_ptr<runtime::Graph> graph, std::shared_ptr<const GraphParts> parts)
      : graph_(std::move(graph)), parts_(std::move(parts)) {}
  void replay() override {
    ScopeRecorder* const recorder = ScopeRecorder::current();
    if (recorder != nullptr) recorder->begin_replay(parts_);
    graph_->replay();
    if (recorder != nullptr) recorder->end();
  }

private:
  std::unique_ptr<runtime::Graph> graph_;
  std::shared_ptr<const GraphParts> parts_;
};

} // namespace

std::unique_ptr<runtime::Graph> TiedRecorder::end() {
  auto parts = parts_.take();
  return std::make_unique<TiedGraph>(inner_.end(), std::move(parts));
}

} // namespace nsa::profile
