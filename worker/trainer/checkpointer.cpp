#include "worker/trainer/checkpointer.h"

#include "common/base/log.h"
#include "common/base/text.h"

namespace nsa::train {

Result<std::unique_ptr<Checkpointer>>
Checkpointer::open(const std::filesystem::path& run_folder, const spec::CheckpointSection& section,
                   manifest::Manifest base, Rank rank, const FlatState& state,
                   runtime::Runtime& runtime, link::Link& link, std::shared_ptr<std::byte> memory) {
  std::unique_ptr<Checkpointer> self(
      new Checkpointer(std::move(base), rank, state, runtime, link, std::move(memory)));
  self->folder_ = run_folder / "checkpoints";
  if (rank != 0) return self;
  const checkpoint::Retention retention{static_cast<int>(section.keep_last),
                                        static_cast<uint64_t>(section.keep_every_steps)};
  NSA_TRY_ASSIGN(self->writer_,
                 checkpoint::Writer::open(
                     self->folder_, retention,
                     [raw = self.get()](const checkpoint::Report& r) { raw->report(r); }));
  return self;
}

void Checkpointer::start(const TrainingPosition& position, const manifest::DataState& data,
                         MonotonicTime begin, PhaseClock& clock) {
  last_step_ = position.step;
  if (!writer_) return;
  const progress::Phase before = clock.phase();
  clock.enter(progress::Phase::kCheckpoint);
  writer_->wait_idle();
  checkpoint::Snapshot snapshot;
  snapshot.files = snapshots_.copy({position.non_finite_streak});
  snapshot.memory = snapshots_.memory();
  snapshot.manifest = base_;
  snapshot.manifest.step = position.step;
  snapshot.manifest.tokens = position.tokens;
  snapshot.manifest.finite = position.finite;
  snapshot.manifest.loss = position.loss;
  snapshot.manifest.data = data;
  snapshot.stall = MonotonicTime::now() - begin;
  writer_->start(std::move(snapshot));
  clock.enter(before);
}

std::optional<Error> Checkpointer::finish() {
  if (writer_) writer_->wait_idle();
  const std::lock_guard lock(mutex_);
  return last_error_;
}

Result<std::filesystem::path> Checkpointer::last_good() {
  writer_->wait_idle();
  for (const manifest::Found& found : manifest::list(folder_, false)) {
    if (!found.manifest || !found.manifest->finite) continue;
    if (manifest::verify(found.folder, *found.manifest)) return found.folder;
  }
  return fail(ErrorCode::kNotFound,
              "there is no verified finite checkpoint in " + folder_.string());
}

void Checkpointer::report(const checkpoint::Report& r) {
  wire::RankCheckpoint message;
  message.rank = rank_;
  message.step = r.step;
  message.tokens = r.tokens;
  message.bytes = r.bytes;
  message.folder = r.folder.string();
  message.manifest_checksum = r.manifest_checksum;
  message.finite = r.finite;
  message.stall_seconds = to_seconds(r.stall);
  message.write_seconds = to_seconds(r.write);
  if (r.error) {
    message.error = r.error->what;
    log::error("checkpoint", "checkpoint failed: " + r.error->what,
               {{"step", std::to_string(r.step)}, {"next", r.error->next}});
  } else {
    log::info("checkpoint", "checkpoint written and read back",
              {{"step", std::to_string(r.step)},
               {"size", format_bytes(r.bytes)},
               {"stall", format_duration(to_seconds(r.stall))},
               {"write", format_duration(to_seconds(r.write))}});
  }
  {
    const std::lock_guard lock(mutex_);
    last_error_ = r.error;
  }
  link_.send(message);
}

} // namespace nsa::train
