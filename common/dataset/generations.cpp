#include "common/dataset/generations.h"

#include "common/base/unique_fd.h"

#include <fcntl.h>
#include <sys/file.h>

namespace nsa::dataset {
namespace {

namespace fs = std::filesystem;

constexpr int kTries = 3; // the fetch may rename its folder between two reads

Result<Manifest> read_generations(const fs::path& folder, const FileOpener& open) {
  const fs::path path = folder / kGenerationsFile;
  NSA_TRY_ASSIGN(const std::string content, read_file(path, kMaxManifestBytes, open));
  return parse_manifest(content, path.string());
}

} // namespace

fs::path fetching_folder(const fs::path& output) {
  const fs::path named = output.has_filename() ? output : output.parent_path(); // "x/" becomes "x"
  return named.string() + ".fetching";
}

Result<Arrived> read_arrived(const fs::path& output, const FileOpener& open) {
  const fs::path fetching = fetching_folder(output);
  for (int i = 0; i < kTries; ++i) {
    auto whole = read_manifest(output, open);
    if (whole) return Arrived{output, std::move(*whole), true};
    if (whole.error().code != ErrorCode::kNotFound) return fail(std::move(whole).error());
    auto part = read_generations(fetching, open);
    if (part) return Arrived{fetching, std::move(*part), false};
    if (part.error().code != ErrorCode::kNotFound) return fail(std::move(part).error());
  }
  std::error_code error;
  if (fs::exists(fetching, error))
    return fail(ErrorCode::kNotFound,
                "the fetch of " + output.string() + " has not completed its first shards yet",
                "submit the run when they are there; a smaller nsactl data fetch --shard-tokens "
                "makes that sooner");
  return fail(ErrorCode::kNotFound, "there is no data set in " + output.string() + ", nor a fetch",
              "begin one: nsactl data fetch --out " + output.string() + " SOURCE...");
}

size_t count_generations(const Manifest& manifest) {
  size_t count = 0;
  for (const ShardRecord& shard : manifest.shards)
    count += shard.split == Split::kTrain;
  return count;
}

Result<Manifest> generations(const Arrived& arrived, size_t shards) {
  Manifest part = arrived.manifest;
  part.shards.clear();
  std::vector<ShardRecord> train;
  for (const ShardRecord& shard : arrived.manifest.shards) {
    if (shard.split == Split::kHeldout && part.shards.empty()) part.shards.push_back(shard);
    if (shard.split == Split::kTrain && train.size() < shards) train.push_back(shard);
  }
  const bool without_heldout = part.shards.empty() && part.preparation.heldout_fraction > 0;
  if (train.size() < shards || (!arrived.complete && without_heldout))
    return fail(ErrorCode::kNotFound,
                arrived.folder.string() + " has " + std::to_string(train.size()) + " of " +
                    std::to_string(shards) + " shards of training text" +
                    (without_heldout ? ", and no held-out shard" : "") + " yet",
                "wait until the fetch is as far");
  part.shards.insert(part.shards.end(), train.begin(), train.end());
  part.digest = dataset_digest(part);
  return part;
}

Status write_generations(const fs::path& folder, const Manifest& manifest) {
  return write_file_atomic(folder / kGenerationsFile, to_json(manifest));
}

Result<std::shared_ptr<const Dataset>> open_arrived(const fs::path& output, Check check,
                                                    const Dataset* before) {
  Result<std::shared_ptr<const Dataset>> opened;
  for (int i = 0; i < kTries; ++i) {
    NSA_TRY_ASSIGN(const Arrived arrived, read_arrived(output));
    NSA_TRY_ASSIGN(Manifest all, generations(arrived, count_generations(arrived.manifest)));
    NSA_TRY_ASSIGN(const Manifest first, generations(arrived, 1));
    all.digest = first.digest;
    opened = Dataset::open_part(arrived.folder, std::move(all), arrived.complete, check, before);
    if (opened || opened.error().code != ErrorCode::kNotFound) break;
  }
  return opened;
}

bool is_fetched_now(const fs::path& output) {
  UniqueFd folder(::open(fetching_folder(output).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return false;
  return ::flock(folder.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

Result<Manifest> read_source(const spec::DataSource& source, const FileOpener& open) {
  if (!source.follow) return read_manifest(source.path, open);
  NSA_TRY_ASSIGN(const Arrived arrived, read_arrived(source.path, open));
  return generations(arrived, 1);
}

fs::path folder_of(const spec::DataSource& source) {
  std::error_code error;
  const bool arrives = source.follow && !fs::exists(fs::path(source.path) / kManifestFile, error);
  return arrives ? fetching_folder(source.path) : fs::path(source.path);
}

} // namespace nsa::dataset
