// Writer writes checkpoints to disk in the background, so that training only waits for a copy in
// memory. It writes to step-<n>.tmp and fsyncs every file and the folder, the manifest last. Then
// it renames the folder, fsyncs the parent, and reads all files back against the checksums. Only
// then does it report the checkpoint as good and count it in retention. A failure, a full disk for
// example, loses only that checkpoint: older ones stay, and training continues.
//
// The training thread calls start() and wait_idle(); reports come on the writer's thread. The
// destructor finishes the checkpoint that was started.
#pragma once

#include "common/base/clock.h"
#include "common/manifest/manifest.h"
#include "common/safetensors/safetensors.h"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

namespace nsa::checkpoint {

struct FileContent {
  std::string name; // for example "model.safetensors"
  std::vector<safetensors::TensorView> tensors;
  safetensors::Metadata metadata;
};

struct Snapshot {
  manifest::Manifest manifest; // the writer fills in `files` and `written_at`
  std::vector<FileContent> files;
  std::shared_ptr<const void> memory; // owns what the tensors point to
  Duration stall{0};                  // how long the training step waited, for the report
};

struct Report {
  uint64_t step = 0, tokens = 0, bytes = 0;
  std::filesystem::path folder;
  std::string manifest_checksum; // XXH3-128 of manifest.json
  bool finite = true;
  Duration stall{0}, write{0};
  std::optional<Error> error; // set if the checkpoint failed
  std::vector<uint64_t> deleted;
};

struct Retention {
  int keep_last = 3;
  uint64_t keep_every_steps = 0;
};

class Writer {
public:
  // `folder` is <run>/checkpoints; it is made if absent. Temporary folders of writers that died
  // (step-*.tmp) are removed, so a run must have only one Writer.
  static Result<std::unique_ptr<Writer>> open(std::filesystem::path folder, Retention retention,
                                              std::function<void(const Report&)> on_report);
  ~Writer();

  // Starts writing. The previous checkpoint must be finished (wait_idle()).
  void start(Snapshot snapshot);
  void wait_idle();
  bool idle() const;

private:
  Writer(std::filesystem::path folder, Retention retention,
         std::function<void(const Report&)> on_report);
  void run();
  Report write(const Snapshot& snapshot);
  Status write_folder(const Snapshot& snapshot, Report& report);
  void apply_retention(Report& report);

  const std::filesystem::path folder_;
  const Retention retention_;
  const std::function<void(const Report&)> on_report_;
  std::set<uint64_t> verified_; // writer's thread only: steps whose files were read back and match

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Snapshot> next_;
  bool busy_ = false, closing_ = false;
  std::thread thread_;
};

} // namespace nsa::checkpoint
