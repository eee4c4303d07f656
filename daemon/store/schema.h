// The ledger's schema by numbered migrations (migrations/NNNN_name.sql, built into the program).
// Each is applied in one transaction and recorded with the digest of its text. So an edited old
// file or a database of a newer program is detected and refused.
#pragma once

#include "common/base/clock.h"
#include "common/base/embedded_file.h"
#include "daemon/store/sqlite.h"

#include <vector>

namespace nsa::store {

const std::vector<EmbeddedFile>& migration_files(); // generated

struct SchemaChange {
  int from = 0, to = 0;
  std::string backup; // path of the backup; empty: there was nothing to back up
};

// Upgrades the database to the newest schema. Before it changes a database that holds data, it
// writes a copy beside it ("<path>.backup-<from>", VACUUM INTO). Errors: kUnsupported if the
// database is from a newer program, kCorrupt if a recorded migration does not match its file.
Result<SchemaChange> migrate(Database& database, const std::string& path, WallTime now,
                             const std::vector<EmbeddedFile>& files = migration_files());

} // namespace nsa::store
