#include "daemon/store/schema.h"

#include "common/base/checksum.h"
#include "common/base/log.h"
#include "daemon/store/open_database.h"

#include <charconv>

namespace nsa::store {

namespace {

Result<int> number_of(std::string_view file_name) {
  int number = 0;
  const std::string digits(file_name.substr(0, 4));
  const char* const last = digits.data() + digits.size();
  const auto [end, error] = std::from_chars(digits.data(), last, number);
  if (digits.size() != 4 || error != std::errc() || end != last)
    return fail(ErrorCode::kInternal, "migration " + std::string(file_name) + " has no number");
  return number;
}

Status check_applied(Database& database, const std::vector<EmbeddedFile>& files, int version) {
  NSA_TRY_ASSIGN(Statement rows,
                 database.prepare("SELECT number, digest FROM schema_migrations ORDER BY number"));
  int seen = 0;
  while (true) {
    NSA_TRY_ASSIGN(const bool row, rows.step());
    if (!row) break;
    const auto number = static_cast<size_t>(rows.integer(0));
    if (number == 0 || number > files.size() ||
        rows.text(1) != checksum_hex(files[number - 1].text))
      return fail(ErrorCode::kCorrupt,
                  "migration " + std::to_string(number) +
                      " of the ledger differs from this program's",
                  "use the program that made the ledger, or restore a backup");
    ++seen;
  }
  if (seen != version)
    return fail(ErrorCode::kCorrupt,
                "the ledger says schema " + std::to_string(version) + " but records " +
                    std::to_string(seen) + " migrations",
                "another program has changed it; put a backup in its place: ls ledger.db*");
  return {};
}

Status apply_one(Database& database, const EmbeddedFile& file, int number, WallTime now) {
  NSA_TRY(database.execute("BEGIN IMMEDIATE"));
  const auto apply = [&]() -> Status {
    NSA_TRY(database.execute(std::string(file.text)));
    NSA_TRY_ASSIGN(Statement insert,
                   database.prepare("INSERT INTO schema_migrations VALUES (?,?,?,?)"));
    NSA_TRY(insert.bind(number, file.name, checksum_hex(file.text), now.nanoseconds).run());
    NSA_TRY(database.execute("PRAGMA user_version = " + std::to_string(number)));
    return database.execute("COMMIT");
  };
  auto applied = apply();
  if (!applied && database.in_transaction()) (void)database.execute("ROLLBACK");
  if (!applied)
    return fail(std::move(applied.error()).within("migration " + std::string(file.name)));
  return {};
}

} // namespace

Result<SchemaChange> migrate(Database& database, const std::string& path, WallTime now,
                             const std::vector<EmbeddedFile>& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    NSA_TRY_ASSIGN(const int number, number_of(files[i].name));
    if (number != static_cast<int>(i) + 1)
      return fail(ErrorCode::kInternal, "migrations are not numbered in a row");
  }
  NSA_TRY_ASSIGN(const int64_t version, database.integer("PRAGMA user_version"));
  SchemaChange change{static_cast<int>(version), static_cast<int>(files.size()), ""};
  if (change.from > change.to)
    return fail(ErrorCode::kUnsupported,
                "the ledger " + path + " has schema " + std::to_string(change.from) +
                    ", this nsad knows up to " + std::to_string(change.to),
                "start the newer nsad that wrote it, or restore " + path + ".backup-" +
                    std::to_string(change.to));
  NSA_TRY(database.execute("CREATE TABLE IF NOT EXISTS schema_migrations (number INTEGER PRIMARY "
                           "KEY, name TEXT NOT NULL, digest TEXT NOT NULL, applied_at INTEGER NOT "
                           "NULL) STRICT"));
  NSA_TRY(check_applied(database, files, change.from));
  if (change.from == change.to) return change;
  if (change.from > 0) {
    change.backup = path + ".backup-" + std::to_string(change.from);
    NSA_TRY(copy_database(database, change.backup)); // also replaces an incomplete backup
    log::info("store", "ledger backed up before its upgrade", {{"file", change.backup}});
  }
  for (int number = change.from + 1; number <= change.to; ++number)
    NSA_TRY(apply_one(database, files[static_cast<size_t>(number - 1)], number, now));
  return change;
}

} // namespace nsa::store
