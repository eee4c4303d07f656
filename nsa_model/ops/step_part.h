// PartScope names the part of a training step that this thread computes, for recorders of steps
// (worker/profile). Without a listener it costs one load. The innermost open scope tells which part
// a kernel or an autograd node belongs to.
//
// Any thread may open scopes. Only the training thread may call listen_to_parts(), and only between
// steps, when no scope is open.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nsa::ops {

enum class StepPart : uint8_t {
  kData,
  kEmbedding,
  kNorm,
  kProjections,
  kGates,
  kCompression,
  kSelection,
  kLists,
  kCompressed,
  kSelected,
  kSliding,
  kAttention, // work that several branches share
  kDense,
  kMlp,
  kLoss,
  kReduction,
  kContext,
  kOptimizer,
  kWeights,
  kResults,
  kAutograd, // autograd's own work between the nodes of a backward pass
};

// Names in tables and traces, in the order of the values.
inline constexpr auto kStepPartNames = std::to_array<std::string_view>({
    "data",
    "embedding",
    "norms",
    "projections and RoPE",
    "gates",
    "compression",
    "compressed scores and top-k",
    "block lists",
    "compressed branch",
    "selected branch",
    "sliding branch",
    "branches together",
    "dense attention",
    "MLP",
    "loss",
    "gradient reduction",
    "context exchange",
    "optimizer",
    "all-gather of weights",
    "results",
    "autograd's sums",
});
inline constexpr size_t kStepParts = kStepPartNames.size();
constexpr std::string_view name_of(StepPart part) {
  return kStepPartNames[static_cast<size_t>(part)];
}
constexpr std::optional<StepPart> step_part_from(std::string_view name) {
  for (size_t i = 0; i < kStepParts; ++i)
    if (kStepPartNames[i] == name) return static_cast<StepPart>(i);
  return std::nullopt;
}

class PartListener {
public:
  virtual ~PartListener() = default;
  // Called on the thread of the scope. Scopes of a thread nest.
  virtual void begin(StepPart part) = 0;
  virtual void end() noexcept = 0;
};

// nullptr: no listener.
void listen_to_parts(PartListener* listener);
PartListener* part_listener();

namespace detail {
extern std::atomic<PartListener*> listener;
}

class PartScope {
public:
  explicit PartScope(StepPart part) : listener_(detail::listener.load(std::memory_order_acquire)) {
    if (listener_ != nullptr) [[unlikely]]
      listener_->begin(part);
  }
  ~PartScope() {
    if (listener_ != nullptr) [[unlikely]]
      listener_->end();
  }
  PartScope(const PartScope&) = delete;
  PartScope& operator=(const PartScope&) = delete;

private:
  PartListener* listener_;
};

} // namespace nsa::ops
