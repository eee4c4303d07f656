#include "worker/bootstrap/starting_checkpoint.h"

#include "common/base/log.h"
#include "common/base/text.h"
#include "common/spec/origin.h"

namespace nsa::train {

using wire::RankExit;

StartingCheckpoint::StartingCheckpoint(const RankOptions& options)
    : options_(options), resumes_(options.resume.has_value()),
      exists_(resumes_ || !options.spec.origin.checkpoint.empty()),
      folder_(resumes_ ? *options.resume : options.run_folder / spec::kOriginFolder) {
  if (!exists_) return;
  manifest_ = read_manifest();
  if (!manifest_) return; // load() returns the error
  for (const manifest::File& file : manifest_->files) {
    manifest::Manifest one;
    one.files = {file};
    checksums_.push_back(std::async(std::launch::async, [folder = folder_, one = std::move(one)] {
      return manifest::verify(folder, one);
    }));
  }
}

Result<manifest::Manifest> StartingCheckpoint::read_manifest() const {
  NSA_TRY_ASSIGN(manifest::Manifest read, manifest::read(folder_));
  if (resumes_) return read;
  const spec::OriginSection& origin = options_.spec.origin;
  if (spec::text_of(spec::Origin{read.run_id, read.step}) != origin.checkpoint)
    return fail(ErrorCode::kCorrupt,
                folder_.string() + " is the checkpoint " + read.run_id + "@" +
                    std::to_string(read.step) + ", not " + origin.checkpoint,
                "submit the run again: nsactl submit --from " + origin.checkpoint);
  return origin.optimizer ? std::move(read) : manifest::weights_alone(std::move(read));
}

Status StartingCheckpoint::verified() {
  for (std::future<Status>& checksum : checksums_)
    NSA_TRY(checksum.get());
  return {};
}

RankResult<std::optional<Resumed>> StartingCheckpoint::load(FlatState& state) {
  if (!exists_) return std::optional<Resumed>();
  NSA_RANK_TRY_ASSIGN(RankExit::kCheckpoint, manifest::Manifest manifest, std::move(manifest_));
  const bool optimizer = resumes_ || options_.spec.origin.optimizer;
  Counters counters;
  Status loaded;
  if (optimizer)
    loaded = load_state(folder_, state).map([&](const Counters& read) { counters = read; });
  else
    loaded = load_weights(folder_, state);
  // For a damaged file both fail. The error of the checksum says what is wrong.
  NSA_RANK_TRY(RankExit::kCheckpoint, verified());
  NSA_RANK_TRY(RankExit::kCheckpoint, std::move(loaded));
  if (resumes_) return std::optional<Resumed>({std::move(manifest), counters});
  log::info("train", optimizer ? "begins with weights and optimizer state" : "begins with weights",
            {{"of", options_.spec.origin.checkpoint}});
  return std::optional<Resumed>();
}

void explain_resume(const manifest::Manifest& then, const manifest::Manifest& now) {
  std::vector<std::string> changes;
  const auto compare = [&](const char* what, const std::string& a, const std::string& b) {
    if (a != b) changes.push_back(std::string(what) + " " + a + " -> " + b);
  };
  compare("world size", std::to_string(then.world_size), std::to_string(now.world_size));
  if (then.world_size > 1 && now.world_size > 1)
    compare("parallel.shard_update", then.shard_update ? "true" : "false",
            now.shard_update ? "true" : "false");
  compare("threads", std::to_string(then.threads), std::to_string(now.threads));
  compare("device", then.device, now.device);
  compare("precision", then.precision, now.precision);
  compare("compute", then.compute, now.compute);
  compare("build", then.build, now.build);
  if (!changes.empty())
    log::warning("train",
                 "resume is exact in data and state but not bit for bit: " + join(changes, ", "));
}

} // namespace nsa::train
