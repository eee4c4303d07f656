// Opens a database file safely: it refuses NFS, checks the file, and restores the newest good
// backup if the file is damaged. The file, its log and every copy have mode 0600 whatever the
// umask, because they hold data of users. One thread.
#pragma once

#include "daemon/store/sqlite.h"

#include <filesystem>

namespace nsa::store {

struct Checked {
  Database database;
  std::string moved_aside, restored;
};

// `synchronous` is "FULL" or "NORMAL".
Result<Checked> open_checked(const std::filesystem::path& path, const char* synchronous);

// Allocates `bytes` inside the database (as free pages) and in its write-ahead log.
Status preallocate(Database& database, uint64_t bytes);

// Copies the database into one file. It replaces `target`, which is incomplete if the copy fails.
Status copy_database(Database& database, const std::filesystem::path& target);

// Writes <path>.backup to a temporary file and renames it, so that a complete backup always exists.
Status back_up(Database& database, const std::filesystem::path& path);

} // namespace nsa::store
