// Opening a database file so that what comes out can be trusted: not on NFS, checked, restored from
// its newest good backup when it is damaged. One thread.
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

// <path>.backup: written aside and renamed, so that there is always a whole one.
Status back_up(Database& database, const std::filesystem::path& path);

} // namespace nsa::store
