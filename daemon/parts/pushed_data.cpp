#include "daemon/parts/pushed_data.h"

#include "common/base/checksum.h"
#include "common/dataset/manifest.h"

#include <algorithm>
#include <filesystem>

namespace nsa::parts {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMostFiles = 5000; // the list of files must fit into a frame

// Reads every file, and compares its size and checksum.
bool is_good(const fs::path& folder, const std::vector<transfer::File>& files) {
  return std::ranges::all_of(files, [&](const transfer::File& file) {
    std::error_code error;
    if (fs::file_size(folder / file.name, error) != file.bytes || error) return false;
    const auto checksum = checksum_file_hex(folder / file.name);
    return checksum && *checksum == file.checksum;
  });
}

// Other folders are never written to.
Status refuse_other_folder(const std::string& path, const std::string& digest) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return {};
  const auto there = dataset::read_manifest(path);
  if (!there && fs::is_directory(path, error) && fs::is_empty(path, error)) return {};
  if (there && there->digest == digest) return {};
  return fail(ErrorCode::kConflict,
              path + (there ? " is another data set there" : " is there already, and no data set"),
              "move it away on that node, or copy the data set on the head to another path");
}

} // namespace

Result<Push> describe_data(const std::string& path) {
  const fs::path folder(path);
  if (!folder.is_absolute() || folder.lexically_normal() != folder)
    return fail(ErrorCode::kInvalidArgument, "the path of a data set must be absolute: " + path,
                "nsactl data push NODE \"$PWD/FOLDER\"");
  NSA_TRY_ASSIGN(const dataset::Manifest manifest, dataset::read_manifest(folder));
  Push push;
  push.path = path;
  push.digest = manifest.digest;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_regular_file(ignored)) continue;
    const std::string name = it->path().filename().string();
    const auto shard = std::ranges::find(manifest.shards, name, &dataset::ShardRecord::file);
    if (shard != manifest.shards.end()) {
      push.files.push_back({name, shard->bytes, shard->checksum});
      continue;
    }
    NSA_TRY_ASSIGN(transfer::File file, transfer::describe(it->path()));
    push.files.push_back(std::move(file));
  }
  if (error) return fail(ErrorCode::kSystem, "cannot list " + path + ": " + error.message());
  if (push.files.size() > kMostFiles)
    return fail(ErrorCode::kUnsupported,
                path + " has " + std::to_string(push.files.size()) + " files, at most " +
                    std::to_string(kMostFiles) + " are copied",
                "prepare it with larger shards: nsactl data prepare --shard-tokens N");
  for (const dataset::ShardRecord& shard : manifest.shards)
    if (std::ranges::find(push.files, shard.file, &transfer::File::name) == push.files.end())
      return fail(ErrorCode::kCorrupt, path + " lacks its shard " + shard.file,
                  "nsactl data verify " + path);
  std::ranges::sort(push.files, {}, &transfer::File::name);
  return push;
}

Result<transfer::Received> fill_data_folder(const Push& push, transfer::Source& source) {
  const fs::path folder(push.path);
  if (!folder.is_absolute() || folder.lexically_normal() != folder)
    return fail(ErrorCode::kInvalidArgument, "the head names no absolute path");
  NSA_TRY(transfer::check(push.files));
  NSA_TRY(refuse_other_folder(push.path, push.digest));
  std::error_code error;
  if (fs::is_directory(folder, error) && is_good(folder, push.files)) {
    transfer::Received received;
    received.bytes = transfer::total_bytes(push.files);
    return received;
  }
  NSA_TRY_ASSIGN(transfer::Received received, transfer::receive(push.files, folder, source));
  NSA_TRY_ASSIGN(const dataset::Manifest manifest, dataset::read_manifest(folder));
  if (manifest.digest != push.digest)
    return fail(ErrorCode::kCorrupt, push.path + " has changed on the head meanwhile",
                "nsactl data push NODE " + push.path);
  return received;
}

} // namespace nsa::parts
