// Checkpointer copies the state when a checkpoint is due and hands the copy to the writer (rank 0).
// It reports the result to the shim and the log, and finds the last good checkpoint for a
// roll-back. Training thread only; reports come from the writer's thread.
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
  // `base` has the fields of the manifest that stay the same for all steps. `memory` has
  // SnapshotMaker::bytes_of(state) bytes, allocated by the runtime. Ranks other than 0 pass no
  // memory, and their Checkpointer writes nothing.
  static Result<std::unique_ptr<Checkpointer>>
  open(const std::filesystem::path& run_folder, const spec::CheckpointSection& section,
       manifest::Manifest base, Rank rank, const FlatState& state, runtime::Runtime& runtime,
       link::Link& link, std::shared_ptr<std::byte> memory);

  // Waits for the previous checkpoint, copies the state, and returns. The writer's thread does the
  // rest. `begin` is when training paused for this checkpoint.
  void start(const TrainingPosition& position, const manifest::DataState& data, MonotonicTime begin,
             PhaseClock& clock);
  // Waits for all checkpoints that were started. Returns the error of the newest one if it failed.
  std::optional<Error> finish();
  std::optional<uint64_t> last_step() const { return last_step_; } // the newest that was started

  // Returns the newest checkpoint that verifies and is finite. Error: kNotFound if there is none.
  // Rank 0 only.
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
  std::unique_ptr<checkpoint::Writer> writer_; // last member: its thread uses the others
};

} // namespace nsa::train
