// Graphs on a CPU. A recording is the list of operators that LibTorch's dispatcher was asked to
// run. A replay calls them again on the same tensors. As with a CUDA graph, a replay does not
// repeat what the host decided or counted during the recording. Unlike a CUDA graph, the operators
// also run while they are recorded, so the first replay leaves them out.
//
// Only operators of the recording thread are seen; on a CPU that is also autograd's thread. A write
// through a data pointer outside of an operator is not seen. A test program that includes this
// header is compiled with NDEBUG, like LibTorch's wheel. Without it RecordFunction has an
// additional member.
#pragma once

#include "worker/graphs/graph.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace nsa::test {

class OperatorGraph : public runtime::Graph {
public:
  struct Call {
    c10::OperatorHandle op;
    std::vector<c10::IValue> inputs, outputs;
  };
  explicit OperatorGraph(std::vector<Call> calls) : calls_(std::move(calls)) {}

  void replay() override {
    if (std::exchange(has_just_run_, false)) return;
    const at::NoGradGuard no_grad;
    for (const Call& call : calls_) {
      torch::jit::Stack stack = call.inputs;
      call.op.callBoxed(stack);
      for (size_t i = 0; i < call.outputs.size(); ++i)
        put(call.outputs[i], stack.at(i));
    }
  }

private:
  static void put(const c10::IValue& recorded, const c10::IValue& now) {
    if (recorded.isTensor()) {
      put(recorded.toTensor(), now.toTensor());
    } else if (recorded.isTensorList()) {
      const auto to = recorded.toTensorVector(), from = now.toTensorVector();
      for (size_t i = 0; i < to.size(); ++i)
        put(to[i], from.at(i));
    }
  }
  static void put(const at::Tensor& recorded, const at::Tensor& now) {
    if (!recorded.defined() || recorded.is_same(now) || recorded.is_alias_of(now)) return;
    if (recorded.sizes() != now.sizes())
      throw std::runtime_error("a replay makes a tensor of another shape");
    recorded.detach().copy_(now);
  }
  std::vector<Call> calls_;
  bool has_just_run_ = true;
};

class OperatorRecorder : public runtime::Recorder {
public:
  // The callback is global, because autograd resets the callbacks of a thread.
  OperatorRecorder() {
    static const at::CallbackHandle handle =
        at::addGlobalCallback(at::RecordFunctionCallback(on_start, on_end)
                                  .needsInputs(true)
                                  .needsOutputs(true)
                                  .scopes({at::RecordScope::FUNCTION}));
    (void)handle;
  }
  ~OperatorRecorder() override { abandon(); }

  void begin() override {
    if (current_ != nullptr) throw std::runtime_error("already recording");
    current_ = this;
    calls_.clear();
    depth_ = 0;
    waits_.clear();
  }
  std::unique_ptr<runtime::Graph> end() override {
    current_ = nullptr;
    if (!waits_.empty()) throw std::runtime_error("the host waits while recording: " + waits_);
    if (calls_.empty()) throw std::runtime_error("nothing was recorded");
    return std::make_unique<OperatorGraph>(std::move(calls_));
  }
  void abandon() noexcept override {
    if (current_ == this) current_ = nullptr;
  }

private:
  // What is kept from an operator's start to its end: whether it is recorded, and its inputs.
  struct Started : at::ObserverContext {
    bool counts = false, outermost = false;
    std::vector<c10::IValue> inputs;
  };

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
    if (current_ == nullptr) return nullptr;
    auto started = std::make_unique<Started>();
    const auto op = operator_of(function);
    // A composite operator is not recorded; the operators that it calls are, because autograd keeps
    // their results.
    if (!op || (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
                !op->hasKernelForDispatchKey(c10::DispatchKey::CPU)))
      return started;
    started->counts = true;
    started->outermost = current_->depth_++ == 0;
    const std::string& name = op->operator_name().name;
    if (name == "aten::_local_scalar_dense" || name == "aten::nonzero") current_->waits_ += name;
    if (started->outermost) {
      const auto inputs = function.inputs();
      started->inputs.assign(inputs.begin(), inputs.end());
    }
    return started;
  }
  static void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
    auto* const started = static_cast<Started*>(context);
    if (current_ == nullptr || started == nullptr || !started->counts) return;
    --current_->depth_;
    if (!started->outermost) return;
    const auto op = operator_of(function);
    if (op->operator_name().name.starts_with("aten::empty")) return; // its result has no contents
    current_->calls_.push_back({*op, std::move(started->inputs), function.outputs()});
  }
  static std::optional<c10::OperatorHandle> operator_of(const at::RecordFunction& function) {
    const auto name = function.operator_name();
    return name ? c10::Dispatcher::singleton().findOp(*name) : std::nullopt;
  }

  static inline thread_local OperatorRecorder* current_ = nullptr;
  std::vector<OperatorGraph::Call> calls_;
  int depth_ = 0;
  std::string waits_;
};

} // namespace nsa::test
