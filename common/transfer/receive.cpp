#include "common/transfer/receive.h"

#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/text.h"

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::transfer {

namespace fs = std::filesystem;

namespace {

constexpr int kTries = 2; // for a file that does not match its checksum

// A folder that is being received.
class Filling {
public:
  Filling(const std::vector<File>& files, fs::path folder, Source& source)
      : files_(files), folder_(std::move(folder)), source_(source) {}

  Status prepare();
  Status fetch(size_t number);
  Status finish(const fs::path& final) const;
  Received& received() { return received_; }

private:
  Status fetch_once(size_t number, uint64_t from);
  Result<bool> is_good(const File& file) const;
  uint64_t here_of(const File& file) const;

  const std::vector<File>& files_;
  const fs::path folder_;
  Source& source_;
  Pace pace_;
  uint64_t here_ = 0; // bytes on disk of all files
  Received received_;
};

uint64_t Filling::here_of(const File& file) const {
  struct stat found{};
  if (::lstat((folder_ / file.name).c_str(), &found) != 0) return 0;
  return static_cast<uint64_t>(found.st_size);
}

// Removes files that are not in the list, because they are of another folder of that name.
Status Filling::prepare() {
  NSA_TRY(make_folder(folder_, 0750));
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const auto file = std::ranges::find(files_, name, &File::name);
    std::error_code ignored;
    if (file == files_.end() || !fs::is_regular_file(it->symlink_status(ignored)) ||
        here_of(*file) > file->bytes)
      fs::remove_all(it->path(), ignored);
  }
  for (const File& file : files_)
    here_ += here_of(file);
  received_.bytes = total_bytes(files_);
  const fs::space_info space = fs::space(folder_, error);
  const uint64_t missing = received_.bytes - here_;
  if (!error && space.available < missing)
    return fail(ErrorCode::kExhausted,
                folder_.parent_path().string() + " has " + format_bytes(space.available) +
                    " free, and " + format_bytes(missing) + " are to come",
                "free space there: df -h " + folder_.parent_path().string());
  return {};
}

Result<bool> Filling::is_good(const File& file) const {
  NSA_TRY_ASSIGN(const std::string checksum, checksum_file_hex(folder_ / file.name));
  return checksum == file.checksum;
}

Status Filling::fetch(size_t number) {
  const File& file = files_[number];
  const fs::path path = folder_ / file.name;
  for (int attempt = 1;; ++attempt) {
    NSA_TRY(fetch_once(number, here_of(file)));
    NSA_TRY_ASSIGN(const bool good, is_good(file));
    if (good) return {};
    here_ -= file.bytes;
    if (::unlink(path.c_str()) != 0) return fail_errno("cannot delete " + path.string());
    log::warning("transfer", "a file is damaged", {{"file", path.string()}});
    ++received_.damaged;
    if (attempt == kTries)
      return fail(ErrorCode::kCorrupt,
                  file.name + " came whole, and its checksum is not the one that the sender named",
                  "look at the sender's copy: nsactl ckpt verify RUN, nsactl data verify FOLDER");
  }
}

Status Filling::fetch_once(size_t number, uint64_t from) {
  const File& file = files_[number];
  const fs::path path = folder_ / file.name;
  const UniqueFd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0640));
  if (!fd) return fail_errno("cannot open " + path.string());
  FilePlan plan(file.bytes, from);
  std::deque<MonotonicTime> asked;
  while (!plan.complete()) {
    while (const auto range = plan.next(pace_.limit())) {
      asked.push_back(MonotonicTime::now());
      NSA_TRY(source_.ask(number, *range, here_));
    }
    NSA_TRY_ASSIGN(const Piece piece, source_.next());
    if (piece.file != number)
      return fail(ErrorCode::kCorrupt, "a piece came of a file that was not asked for");
    NSA_TRY(plan.arrived({piece.offset, static_cast<uint32_t>(piece.bytes.size())}));
    pace_.arrived(MonotonicTime::now() - asked.front());
    asked.pop_front();
    if (auto put = write_all(fd.get(), piece.bytes.data(), piece.bytes.size()); !put)
      return fail(std::move(put).error().within("writing " + path.string()));
    here_ += piece.bytes.size();
    received_.fetched += piece.bytes.size();
  }
  if (::fsync(fd.get()) != 0) return fail_errno("cannot fsync " + path.string());
  return {};
}

Status Filling::finish(const fs::path& final) const {
  NSA_TRY(sync_folder(folder_));
  std::error_code error;
  fs::rename(folder_, final, error);
  if (error)
    return fail(ErrorCode::kSystem, "cannot make " + final.string() + ": " + error.message());
  return sync_folder(final.parent_path());
}

} // namespace

void to_json(nlohmann::json& json, const Received& received) {
  json = {{"bytes", received.bytes},
          {"fetched", received.fetched},
          {"damaged", received.damaged},
          {"seconds", received.seconds}};
}

void from_json(const nlohmann::json& json, Received& received) {
  json.at("bytes").get_to(received.bytes);
  json.at("fetched").get_to(received.fetched);
  json.at("damaged").get_to(received.damaged);
  json.at("seconds").get_to(received.seconds);
}

Result<Received> receive(const std::vector<File>& files, const fs::path& folder, Source& source) {
  NSA_TRY(check(files));
  const MonotonicTime began = MonotonicTime::now();
  const fs::path partial = folder.string() + ".partial";
  NSA_TRY(make_folder(folder.parent_path(), 0750));
  // A copy of an earlier call exists. Its good files stay; damaged ones are detected and fetched
  // again.
  std::error_code error;
  if (fs::is_directory(folder, error)) {
    fs::remove_all(partial, error);
    fs::rename(folder, partial, error);
    if (error)
      return fail(ErrorCode::kSystem,
                  "cannot look through " + folder.string() + ": " + error.message());
  }
  Filling filling(files, partial, source);
  NSA_TRY(filling.prepare());
  for (size_t number = 0; number < files.size(); ++number)
    NSA_TRY(filling.fetch(number));
  NSA_TRY(filling.finish(folder));
  filling.received().seconds = to_seconds(MonotonicTime::now() - began);
  return filling.received();
}

Result<File> describe(const fs::path& path) {
  File file;
  file.name = path.filename().string();
  std::error_code error;
  file.bytes = fs::file_size(path, error);
  if (error)
    return fail(ErrorCode::kSystem, "cannot size " + path.string() + ": " + error.message());
  NSA_TRY_ASSIGN(file.checksum, checksum_file_hex(path));
  return file;
}

} // namespace nsa::transfer
