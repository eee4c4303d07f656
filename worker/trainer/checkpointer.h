// Checkpointer: when a checkpoint is due, copies the state and hands it to the writer (rank 0).
// Reports the result to shim and log. Loads the last good checkpoint for a roll-back. Training
// thread only; reports come from the writer's thread.
#pragma once

#include "common/spec/run_spec.h"
#include "worker/checkpoint/writer.h"
#include "worker/link/link.h"
#include "worker/link/phase_clock.h"
#include "worker/optimizer/state_io.h"
#include "worker/trainer/failure.h"
#include "worker/trainer/position.h"

namespace nsa::train {

class Checkpointer {
public:
  // `base`: the fields of the manifest that do not change from step to step. `memory`: of the
  // runtime, SnapshotMaker::bytes_of(state). Other ranks than 0 make one too, without, which does
  // nothing.
  static Result<std::unique_ptr<Checkpointer>>
  open(const std::filesystem::path& run_folder, const spec::CheckpointSection& section,
       manifest::Manifest base, Rank rank, const FlatState& state, runtime::Runtime& runtime,
       link::Link& link, std::shared_ptr<std::byte> memory);

  // Waits for the checkpoint before it, copies, and returns; the rest goes on behind. Training has
  // stood still for it since `begin`.
  void start(const TrainingPosition& position, const manifest::DataState& data, MonotonicTime begin,
             PhaseClock& clock);
  // Waits for what was started; the error of the newest checkpoint, if it failed.
  std::optional<Error> finish();
  std::optional<uint64_t> last_step() const { return last_step_; } // newest that was started

  // The newest checkpoint that verifies and is finite; kNotFound without one. Rank 0.
  Result<std::filesystem::path> last_good();

private:
  Checkpointer(manifest::Manifest base, Rank rank, const FlatState& state,
               runtime::Runtime& runtime, link::Link& link, std::shared_ptr<std::byte> memory)
      : base_(std::move(base)), rank_(rank), link_(link),
        snapshots_(state, runtime, std::move(memory)) {}
  void report(const checkpoint::Report& report);

  const manifest::Manifest base_;
  const Rank rank_;
  link::Link& link_;
  SnapshotMaker snapshots_;
  std::filesystem::path folder_;
  std::optional<uint64_t> last_step_;
  std::mutex mutex_;
  std::optional<Error> last_error_;
  std::unique_ptr<checkpoint::Writer> writer_; // last: its thread uses the rest
};

} // namespace nsa::train
