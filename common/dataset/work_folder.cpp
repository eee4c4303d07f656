#include "common/dataset/work_folder.h"

#include "common/base/file.h"

#include <cstdio>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::dataset {
namespace fs = std::filesystem;
namespace {

constexpr int kLockTries = 20;
constexpr useconds_t kLockPauseMicroseconds = 10'000;

// Returns whether `path` is still the locked folder, and not a new one made after a rename.
bool is_same_folder(int fd, const fs::path& path) {
  struct stat locked{}, named{};
  return ::fstat(fd, &locked) == 0 && ::stat(path.c_str(), &named) == 0 &&
         locked.st_dev == named.st_dev && locked.st_ino == named.st_ino;
}

Status remove_content(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error))
    fs::remove_all(at->path(), error);
  if (error)
    return fail(ErrorCode::kSystem, "cannot clear " + folder.string() + ": " + error.message());
  return {};
}

} // namespace

Result<WorkFolder> WorkFolder::create(const fs::path& output) {
  NSA_TRY_ASSIGN(WorkFolder folder, lock(output, ".preparing"));
  NSA_TRY(folder.clear());
  return folder;
}

Result<WorkFolder> WorkFolder::create_or_continue(const fs::path& output) {
  NSA_TRY_ASSIGN(WorkFolder folder, lock(output, ".fetching"));
  folder.stays_ = true;
  return folder;
}

Status WorkFolder::clear() {
  return remove_content(path_);
}

Result<WorkFolder> WorkFolder::lock(const fs::path& output, const char* ending) {
  WorkFolder folder;
  folder.output_ = output.has_filename() ? output : output.parent_path(); // "x/" becomes "x"
  const fs::path path = folder.output_.string() + ending;
  while (true) {
    if (auto made = make_folder(path); !made) {
      made.error().next = "name a folder that can be made: --out FOLDER";
      return fail(std::move(made.error()));
    }
    folder.lock_.reset(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.lock_) {
      if (errno == ENOENT) continue; // its owner has just renamed it
      return fail_errno("cannot open " + path.string());
    }
    // Ranks with data.follow check the lock, and hold it for an instant.
    bool locked = false;
    for (int i = 0; i < kLockTries && !locked; ++i) {
      if (i > 0) ::usleep(kLockPauseMicroseconds);
      locked = ::flock(folder.lock_.get(), LOCK_EX | LOCK_NB) == 0;
    }
    if (!locked)
      return fail(ErrorCode::kConflict,
                  output.string() + " is being made by another process (" + path.string() +
                      " is locked)",
                  "wait for it, or choose another output folder");
    if (is_same_folder(folder.lock_.get(), path)) break;
  }
  folder.path_ = path;
  return folder;
}

WorkFolder::~WorkFolder() {
  if (!lock_ || stays_) return;
  std::error_code ignored; // the next create() removes the rest
  fs::remove_all(path_, ignored);
}

Status WorkFolder::commit(bool replace) {
  NSA_TRY(sync_folder(path_));
  std::error_code error;
  const bool swap = replace && fs::exists(output_, error);
  const unsigned flags = swap ? RENAME_EXCHANGE : 0;
  if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, output_.c_str(), flags) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR)
      return fail(ErrorCode::kConflict, output_.string() + " exists",
                  "name another folder: --out FOLDER");
    return fail_errno("cannot rename " + path_.string() + " to " + output_.string());
  }
  NSA_TRY(sync_folder(output_.parent_path()));
  lock_.reset();
  if (swap)
    fs::remove_all(path_, error); // removes the old one; a rest is harmless and removed later
  return {};
}

} // namespace nsa::dataset
