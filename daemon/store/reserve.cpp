#include "daemon/store/reserve.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/text.h"
#include "common/base/unique_fd.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa::store {

namespace {
// An attempt of eight ranks makes about forty: folders, plan, logs, exit codes, and temporary
// files.
constexpr int kFiles = 128;
} // namespace

Status SpaceReserve::hold() {
  if (held_ || bytes_ == 0) return {};
  UniqueFd fd(::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return fail_errno("cannot open " + file_.string());
  // The file needs allocated blocks: a sparse file would reserve nothing.
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes_)); error != 0) {
    ::unlink(file_.c_str());
    errno = error;
    return fail_errno("cannot set " + format_bytes(bytes_) + " aside in " + file_.string(),
                      "free disk space; until then a full disk may stop restarts");
  }
  if (auto made = hold_files(); !made) {
    ::unlink(file_.c_str());
    std::error_code ignored;
    std::filesystem::remove_all(files(), ignored);
    return made;
  }
  held_ = true;
  return {};
}

Status SpaceReserve::hold_files() {
  NSA_TRY(make_folder(files(), 0700));
  for (int i = 0; i < kFiles; ++i) {
    const std::string path = (files() / std::to_string(i)).string();
    const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd)
      return fail_errno("cannot set " + std::to_string(kFiles) + " files aside in " +
                            files().string(),
                        "remove files from that file system (df -i); until then running out of "
                        "them may stop restarts");
  }
  return {};
}

bool SpaceReserve::release() {
  if (!held_) return false;
  held_ = false;
  ::unlink(file_.c_str());
  std::error_code ignored;
  std::filesystem::remove_all(files(), ignored);
  log::warning("store", "the disk is full: reserved space released",
               {{"bytes", std::to_string(bytes_)}, {"file", file_.string()}});
  return true;
}

} // namespace nsa::store
