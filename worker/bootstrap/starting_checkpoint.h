// The checkpoint that a rank starts from: the newest good one of its run, or one of another run
// (the run's origin). Its checksums are computed while LibTorch and the device are opened.
#pragma once

#include "common/manifest/manifest.h"
#include "worker/bootstrap/session.h"
#include "worker/optimizer/state_io.h"

#include <future>
#include <optional>
#include <vector>

namespace nsa::train {

struct Resumed {
  manifest::Manifest manifest;
  Counters counters;
};

class StartingCheckpoint {
public:
  // Reads the manifest and starts one thread for the checksum of each file. Uses no LibTorch.
  explicit StartingCheckpoint(const RankOptions& options);

  // Returns whether the rank starts from a checkpoint, so that the model needs no initial values.
  bool exists() const { return exists_; }

  // Fills `state`, then waits for the checksums. Returns nullopt if there is no checkpoint, or if
  // it is the origin: the run then begins at step 0, whatever step the origin has. All errors are
  // RankExit::kCheckpoint, and `state` must not be used after one.
  RankResult<std::optional<Resumed>> load(FlatState& state);

private:
  Result<manifest::Manifest> read_manifest() const;
  Status verified();

  const RankOptions& options_;
  const bool resumes_, exists_;
  const std::filesystem::path folder_;
  Result<manifest::Manifest> manifest_ = manifest::Manifest();
  std::vector<std::future<Status>> checksums_;
};

// Logs why a resume is not bit-exact, if it is not.
void explain_resume(const manifest::Manifest& then, const manifest::Manifest& now);

} // namespace nsa::train
