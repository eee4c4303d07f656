// Whole-file I/O. Writing is crash-safe: a reader sees the old content or the new, never a mixture.
// Reading returns even if the path is a FIFO, a device or an endless file. Calls block as long as
// the file system does. Call them off latency-critical threads if files are large or may be on a
// network file system.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace nsa {

// Opens a regular file for reading, and never waits for a writer. Error: kInvalidArgument names the
// actual type: "is a FIFO, not a regular file".
Result<UniqueFd> open_regular_file(const std::filesystem::path& path);

// Opens the file for read_file(), for callers that must open it differently: as another user, for
// example.
using FileOpener = std::function<Result<UniqueFd>(const std::filesystem::path&)>;

// Never reads more than `max_bytes`. Error: kExhausted if the file is larger.
Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30,
                              const FileOpener& open = open_regular_file);

// Like read_file(), but also reads a FIFO or a device, and waits for it. For paths from a command
// line, such as <(command).
Result<std::string> read_file_or_pipe(const std::filesystem::path& path, size_t max_bytes);

// The crash that a written file survives. Only kMachineCrash waits for the disk, which may take
// seconds while other large data is flushed.
enum class Survives { kProcessCrash, kMachineCrash };

// Writes a new file path.tmp-<pid>, replacing any existing one, fsyncs it, renames it over `path`,
// and fsyncs the folder. It fsyncs only for kMachineCrash. On failure `path` is unchanged and the
// temporary file is removed.
Status write_file_atomic(const std::filesystem::path& path, std::string_view content,
                         unsigned mode = 0644, Survives survives = Survives::kMachineCrash);

// Writes all of `data` to `fd`; retries after short writes and EINTR.
Status write_all(int fd, const void* data, size_t size);

// Makes the folder and its missing parents; `mode` applies to those that it makes.
Status make_folder(const std::filesystem::path& path, unsigned mode = 0755);

// Fsyncs a folder, so that renames and new names inside it are on disk.
Status sync_folder(const std::filesystem::path& path);

} // namespace nsa
