// Saves FlatState to checkpoint folders and loads it. Files: model.safetensors (masters under the
// parameters' names) and optimizer.safetensors ("first_moment.<name>", "second_moment.<name>", and
// the counters in its metadata). Tensors keep their type. BF16 weights beside masters are not
// stored, because they are the masters rounded. Files do not depend on the flat layout, so any
// layout, bucket size, world size or precision mode can read them. Another precision mode rounds
// once, to the nearest.
#pragma once

#include "worker/checkpoint/writer.h"
#include "worker/optimizer/flat_state.h"
#include "worker/runtime/runtime.h"

namespace nsa::train {

struct Counters {
  int64_t non_finite_streak = 0;
};

// Copies the state to host memory and describes it. The writer of the previous snapshot must be
// idle, because its memory is reused.
class SnapshotMaker {
public:
  // `memory` has bytes_of(state) bytes of the runtime's host memory. Allocating takes longer than
  // copying, so it happens during start-up and not in the first checkpoint.
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

// Fills masters, moments, updates and weights. The error names the tensor that is missing or has
// another shape.
Result<Counters> load_state(const std::filesystem::path& checkpoint, FlatState& state);
// Fills masters and weights only; the optimizer state keeps its initial values.
Status load_weights(const std::filesystem::path& checkpoint, FlatState& state);

} // namespace nsa::train
