// Opening a database file so that what comes out can be trusted: not on NFS, checked, restored from
// its newest good backup when it is damaged. The file, its log and every copy have mode 0600,
// whatever the umask: they hold what users gave to their runs. One thread.
#pragma once

#include "daemon/store/sqlite.h"

#include <filesystem>

namespace nsa::store {

struct Checked {
  Database database;
  std::string moved_aside, restored;
};

// `synchronous`: "FULL" or "NORMAL".
Result<Checked> open_checked(const std::filesystem::path& path, const char* synchronous);

// Allocates `bytes` inside the database (as free pages) and in its write-ahead log.
Status preallocate(Database& database, uint64_t bytes);

// A copy in one file; what was there is replaced, and is not whole if the copy fails.
Status copy_database(Database& database, const std::filesystem::path& target);

// <path>.backup: written aside and renamed, so that there is always a whole one.
Status back_up(Database& database, const std::filesystem::path& path);

} // namespace nsa::store
