#include "worker/profile/scope_recorder.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <algorithm>
#include <charconv>

namespace nsa::profile {

using ops::StepPart;

namespace {

// A USER_SCOPE would have no kernels, because LibTorch keeps those correlations separately.
constexpr at::RecordScope kScope = at::RecordScope::STATIC_RUNTIME_OP;
constexpr std::string_view kReplay = "replay ";

std::atomic<ScopeRecorder*> g_current{nullptr};

// If LibTorch has CUDA, external profilers see the scopes, too.
struct PopRange {
  void operator()(const torch::profiler::impl::ProfilerStubs* cuda) const { cuda->rangePop(); }
};
using NvtxRange = std::unique_ptr<const torch::profiler::impl::ProfilerStubs, PopRange>;

NvtxRange push_range(std::string_view name) {
  const torch::profiler::impl::ProfilerStubs* cuda = torch::profiler::impl::cudaStubs();
  if (!cuda->enabled()) return nullptr;
  cuda->rangePush(std::string(name).c_str());
  return NvtxRange(cuda);
}

struct Open {
  NvtxRange nvtx;
  std::unique_ptr<at::RecordFunction> range;
  std::optional<StepPart> part;
};
thread_local std::vector<Open> t_open;

} // namespace

ScopeRecorder::ScopeRecorder() {
  g_current.store(this);
  ops::listen_to_parts(this);
}

void ScopeRecorder::stop() {
  if (!std::exchange(listens_, false)) return;
  ops::listen_to_parts(nullptr);
  g_current.store(nullptr);
}

ScopeRecorder* ScopeRecorder::current() {
  return g_current.load(std::memory_order_acquire);
}

uint8_t ScopeRecorder::scope_kind() {
  return static_cast<uint8_t>(kScope);
}

void ScopeRecorder::open(std::string_view name, std::optional<StepPart> part) {
  auto range = std::make_unique<at::RecordFunction>(kScope);
  if (range->isActive()) range->before(name);
  t_open.push_back({push_range(name), std::move(range), part});
  nodes_.note(at::RecordFunction::currentThreadId(), at::sequence_number::peek(), part);
}

void ScopeRecorder::begin(StepPart part) {
  open(ops::name_of(part), part);
}

void ScopeRecorder::end() noexcept {
  if (t_open.empty()) return;
  t_open.pop_back();
  nodes_.note(at::RecordFunction::currentThreadId(), at::sequence_number::peek(),
              t_open.empty() ? std::nullopt : t_open.back().part);
}

void ScopeRecorder::begin_replay(std::shared_ptr<const GraphParts> graph) {
  size_t place = 0;
  {
    const std::lock_guard lock(mutex_);
    place = static_cast<size_t>(std::find(replayed_.begin(), replayed_.end(), graph) -
                                replayed_.begin());
    if (place == replayed_.size()) replayed_.push_back(std::move(graph));
  }
  open(std::string(kReplay) + std::to_string(place), std::nullopt);
}

std::shared_ptr<const GraphParts> ScopeRecorder::replayed(const std::string& name) const {
  if (!name.starts_with(kReplay)) return nullptr;
  size_t place = 0;
  const char* const end = name.data() + name.size();
  if (std::from_chars(name.data() + kReplay.size(), end, place).ptr != end) return nullptr;
  const std::lock_guard lock(mutex_);
  return place < replayed_.size() ? replayed_[place] : nullptr;
}

} // namespace nsa::profile
