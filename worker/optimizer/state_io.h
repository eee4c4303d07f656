// FlatState to and from checkpoint folders. Files: model.safetensors (masters under the
// parameters' names) and optimizer.safetensors ("first_moment.<name>", "second_moment.<name>", and
// the counters in its metadata), in the types they are kept in. BF16 weights beside masters are not
// stored: they are the masters rounded. Flat layout never reaches the disk, so any other layout,
// bucket size, world size or precision mode can read it (the last with one rounding, to the
// nearest).
#pragma once

#include "worker/checkpoint/writer.h"
#include "worker/optimizer/flat_state.h"
#include "worker/runtime/runtime.h"

namespace nsa::train {

struct Counters {
  int64_t non_finite_streak = 0;
};

// Copies the state to host memory and describes it. The writer of the previous snapshot must be
// idle: its memory is used again.
class SnapshotMaker {
public:
  // `memory`: bytes_of(state) of the runtime's host memory, which takes longer to make than a copy
  // into it: during start-up rather than in the first checkpoint.
  SnapshotMaker(const FlatState& state, runtime::Runtime& runtime,
                std::shared_ptr<std::byte> memory);
  static size_t bytes_of(const FlatState& state);
  std::vector<checkpoint::FileContent> copy(const Counters& counters);
  std::shared_ptr<const void> memory() const { return memory_; }

private:
  const FlatState& state_;
  runtime::Runtime& runtime_;
  std::shared_ptr<std::byte> memory_;
};

// Fills masters, moments, updates and weights. Errors name the tensor that is missing or of another
// shape.
Result<Counters> load_state(const std::filesystem::path& checkpoint, FlatState& state);
// Fills masters and weights alone: the optimizer begins anew.
Status load_weights(const std::filesystem::path& checkpoint, FlatState& state);

} // namespace nsa::train
