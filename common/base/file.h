// Whole-file I/O. Writing survives crashes: a reader sees the old content or the new, never a
// mixture. Reading trusts nobody: what lies at a path may be a FIFO, a device or an endless file,
// and the call still returns. Blocking as far as the file system blocks; call it off
// latency-critical threads when files are large or may lie on a network file system.
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

// Opens a regular file for reading and never waits for a writer. kInvalidArgument says what lies
// there instead: "is a FIFO, not a regular file".
Result<UniqueFd> open_regular_file(const std::filesystem::path& path);

// How a file is opened, where that is somebody else's choice: as another user, say.
using FileOpener = std::function<Result<UniqueFd>(const std::filesystem::path&)>;

// kExhausted: the file is larger than `max_bytes`; no more than that is ever read.
Result<std::string> read_file(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30,
                              const FileOpener& open = open_regular_file);

// As read_file(), and takes a FIFO or a device too, and waits for it: for what a person names on a
// command line, such as <(command).
Result<std::string> read_file_or_pipe(const std::filesystem::path& path, size_t max_bytes);

// What a written file is to survive. Only kMachineCrash waits for the disk, which may take seconds
// while something large is flushed.
enum class Survives { kProcessCrash, kMachineCrash };

// Writes path.tmp-<pid>, a new file whatever lay there, fsyncs it, renames it over `path`, fsyncs
// the folder (both only for kMachineCrash). On failure `path` is untouched and the temporary file
// is removed.
Status write_file_atomic(const std::filesystem::path& path, std::string_view content,
                         unsigned mode = 0644, Survives survives = Survives::kMachineCrash);

// Writes all of `data` to fd, retrying short writes and EINTR.
Status write_all(int fd, const void* data, size_t size);

// Makes the folder and its parents with this mode (the mode applies to those that are made).
Status make_folder(const std::filesystem::path& path, unsigned mode = 0755);

// fsyncs a folder, so that renames and new names inside it are on disk.
Status sync_folder(const std::filesystem::path& path);

} // namespace nsa
