#include "common/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace nsa {

namespace {

const char* kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
  case S_IFREG:
    return "a regular file";
  case S_IFDIR:
    return "a folder";
  case S_IFIFO:
    return "a FIFO";
  case S_IFSOCK:
    return "a socket";
  case S_IFCHR:
  case S_IFBLK:
    return "a device";
  default:
    return "no file";
  }
}

Error too_large(const std::filesystem::path& path, size_t max_bytes) {
  return {ErrorCode::kExhausted,
          path.string() + " is larger than " + std::to_string(max_bytes) + " bytes", ""};
}

// Reads at most `max_bytes`, whatever fstat() says: a file may grow, and files in /proc have size
// 0.
Result<std::string> read_all(int fd, const std::filesystem::path& path, size_t max_bytes) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) return fail_errno("cannot stat " + path.string());
  std::string content;
  if (S_ISREG(info.st_mode) && info.st_size > 0) {
    if (static_cast<uint64_t>(info.st_size) > max_bytes) return fail(too_large(path, max_bytes));
    content.reserve(static_cast<size_t>(info.st_size));
  }
  char chunk[1 << 16];
  while (true) {
    const ssize_t got = ::read(fd, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("cannot read " + path.string());
    if (got == 0) return content;
    if (content.size() + static_cast<size_t>(got) > max_bytes)
      return fail(too_large(path, max_bytes));
    content.append(chunk, static_cast<size_t>(got));
  }
}

} // namespace

Result<UniqueFd> open_regular_file(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  // open() itself fails for a socket, and for a device without a driver.
  if (!fd && errno == ENXIO)
    return fail(ErrorCode::kInvalidArgument,
                path.string() + " is a socket or a device, not a regular file");
  if (!fd) return fail_errno("cannot open " + path.string());
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("cannot stat " + path.string());
  if (!S_ISREG(info.st_mode))
    return fail(ErrorCode::kInvalidArgument,
                path.string() + " is " + kind_of(info.st_mode) + ", not a regular file");
  return fd;
}

Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes,
                              const FileOpener& open) {
  NSA_TRY_ASSIGN(const UniqueFd fd, open(path));
  return read_all(fd.get(), path, max_bytes);
}

Result<std::string> read_file_or_pipe(const std::filesystem::path& path, size_t max_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC));
  if (!fd) return fail_errno("cannot open " + path.string());
  struct stat info{};
  if (::fstat(fd.get(), &info) == 0 && S_ISDIR(info.st_mode))
    return fail(ErrorCode::kInvalidArgument, path.string() + " is a folder, a file was expected");
  return read_all(fd.get(), path, max_bytes);
}

Status write_all(int fd, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t put = ::write(fd, at, size);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return fail_errno("cannot write");
    at += put;
    size -= static_cast<size_t>(put);
  }
  return {};
}

Status write_file_atomic(const std::filesystem::path& path, std::string_view content, unsigned mode,
                         Survives survives) {
  const bool durable = survives == Survives::kMachineCrash;
  const std::string temporary = path.string() + ".tmp-" + std::to_string(::getpid());
  // An existing file is of a process that had our pid, or somebody else placed it there. It is
  // removed, never opened.
  ::unlink(temporary.c_str());
  UniqueFd fd(
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd) return fail_errno("cannot create " + temporary);
  auto write = [&]() -> Status {
    NSA_TRY(write_all(fd.get(), content.data(), content.size()));
    if (durable && ::fsync(fd.get()) != 0) return fail_errno("cannot fsync");
    if (::rename(temporary.c_str(), path.c_str()) != 0) return fail_errno("cannot rename");
    return {};
  };
  if (auto status = write(); !status) {
    ::unlink(temporary.c_str());
    return fail(std::move(status).error().within("writing " + path.string()));
  }
  return durable ? sync_folder(path.parent_path()) : Status{};
}

Status make_folder(const std::filesystem::path& path, unsigned mode) {
  if (path.empty()) return {};
  if (::mkdir(path.c_str(), mode) == 0) return {};
  if (errno == ENOENT) {
    NSA_TRY(make_folder(path.parent_path(), mode));
    if (::mkdir(path.c_str(), mode) == 0 || errno == EEXIST) return {};
    return fail_errno("cannot make folder " + path.string());
  }
  struct stat info{};
  if (errno == EEXIST && ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return {};
  return fail_errno("cannot make folder " + path.string());
}

Status sync_folder(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.empty() ? "." : path;
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return fail_errno("cannot open folder " + folder.string());
  if (::fsync(fd.get()) != 0) return fail_errno("cannot fsync folder " + folder.string());
  return {};
}

} // namespace nsa
