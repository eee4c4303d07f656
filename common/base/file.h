// Whole-file I/O that survives crashes: a reader sees the old content or the new, never a mixture.
// Blocking; call it off latency-critical threads when files are large.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace nsa {

Result<std::string> read_file(const std::filesystem::path& path,
                              size_t max_bytes = size_t{1} << 30);

// What a written file is to survive. Only kMachineCrash waits for the disk, which may take seconds
// while something large is flushed.
enum class Survives { kProcessCrash, kMachineCrash };

// Writes path.tmp-<pid>, fsyncs it, renames it over `path`, fsyncs the folder (both only for
// kMachineCrash). On failure `path` is untouched and the temporary file is removed.
Status write_file_atomic(const std::filesystem::path& path, std::string_view content,
                         unsigned mode = 0644, Survives survives = Survives::kMachineCrash);

// Writes all of `data` to fd, retrying short writes and EINTR.
Status write_all(int fd, const void* data, size_t size);

// Makes the folder and its parents with this mode (the mode applies to those that are made).
Status make_folder(const std::filesystem::path& path, unsigned mode = 0755);

// fsyncs a folder, so that renames and new names inside it are on disk.
Status sync_folder(const std::filesystem::path& path);

} // namespace nsa
