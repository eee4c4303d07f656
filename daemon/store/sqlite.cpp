#include "daemon/store/sqlite.h"

#include <sqlite3.h>
#include <utility>

namespace nsa::store {

namespace {

ErrorCode code_of(int result) {
  switch (result & 0xff) {
  case SQLITE_FULL:
    return ErrorCode::kExhausted;
  case SQLITE_CORRUPT:
  case SQLITE_NOTADB:
    return ErrorCode::kCorrupt;
  case SQLITE_BUSY:
  case SQLITE_LOCKED:
    return ErrorCode::kUnavailable;
  case SQLITE_CONSTRAINT:
    return ErrorCode::kConflict;
  case SQLITE_PERM:
  case SQLITE_READONLY:
  case SQLITE_CANTOPEN:
    return ErrorCode::kPermission;
  default:
    return ErrorCode::kSystem;
  }
}

tl::unexpected<Error> fail_sqlite(sqlite3* db, int result, bool* damaged) {
  const int extended = db != nullptr ? sqlite3_extended_errcode(db) : result;
  // A full tmpfs or quota appears as a write error while the WAL grows.
  const bool full = extended == SQLITE_IOERR_WRITE && sqlite3_system_errno(db) == ENOSPC;
  const ErrorCode code = full ? ErrorCode::kExhausted : code_of(result);
  *damaged |= code == ErrorCode::kCorrupt;
  return fail(
      code,
      std::string("SQLite: ") + (db != nullptr ? sqlite3_errmsg(db) : sqlite3_errstr(result)) +
          " (" + std::to_string(extended) + ")",
      code == ErrorCode::kCorrupt ? "nsad starts again with its newest backup; try then" : "");
}

} // namespace

Statement::Statement(Statement&& other) noexcept
    : raw_(std::exchange(other.raw_, nullptr)), damaged_(other.damaged_) {}

Statement& Statement::operator=(Statement&& other) noexcept {
  std::swap(raw_, other.raw_);
  std::swap(damaged_, other.damaged_);
  return *this;
}

Statement::~Statement() {
  sqlite3_finalize(raw_);
}

void Statement::reset() {
  sqlite3_reset(raw_);
}

void Statement::bind_one(int index, int64_t value) {
  sqlite3_bind_int64(raw_, index, value);
}

void Statement::bind_one(int index, double value) {
  sqlite3_bind_double(raw_, index, value);
}

void Statement::bind_one(int index, std::string_view value) {
  sqlite3_bind_text(raw_, index, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
}

Result<bool> Statement::step() {
  const int result = sqlite3_step(raw_);
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) {
    sqlite3_reset(raw_);
    return false;
  }
  auto error = fail_sqlite(sqlite3_db_handle(raw_), result, damaged_);
  sqlite3_reset(raw_);
  return error;
}

Status Statement::run() {
  while (true) {
    NSA_TRY_ASSIGN(const bool row, step());
    if (!row) return {};
  }
}

int64_t Statement::integer(int column) const {
  return sqlite3_column_int64(raw_, column);
}

double Statement::real(int column) const {
  return sqlite3_column_double(raw_, column);
}

std::string Statement::text(int column) const {
  const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(raw_, column));
  if (bytes == nullptr) return {};
  return {bytes, static_cast<size_t>(sqlite3_column_bytes(raw_, column))};
}

Result<Database> Database::open(const std::string& path) {
  sqlite3* raw = nullptr;
  const int result =
      sqlite3_open_v2(path.c_str(), &raw,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  Database database(raw);
  if (result != SQLITE_OK)
    return fail(std::move(fail_sqlite(raw, result, database.damaged_.get()).value()).within(path));
  sqlite3_extended_result_codes(raw, 1);
  sqlite3_busy_timeout(raw, 5000);
  // Keep the log when the database is closed: a full disk would not give its space back.
  int keep = 1;
  sqlite3_file_control(raw, "main", SQLITE_FCNTL_PERSIST_WAL, &keep);
  return database;
}

Database::Database(Database&& other) noexcept
    : raw_(std::exchange(other.raw_, nullptr)), damaged_(std::move(other.damaged_)) {}

Database& Database::operator=(Database&& other) noexcept {
  std::swap(raw_, other.raw_);
  std::swap(damaged_, other.damaged_);
  return *this;
}

Database::~Database() {
  sqlite3_close_v2(raw_);
}

Status Database::execute(const std::string& sql) {
  const int result = sqlite3_exec(raw_, sql.c_str(), nullptr, nullptr, nullptr);
  if (result != SQLITE_OK) return fail_sqlite(raw_, result, damaged_.get());
  return {};
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* raw = nullptr;
  const int result =
      sqlite3_prepare_v2(raw_, sql.data(), static_cast<int>(sql.size()), &raw, nullptr);
  if (result != SQLITE_OK) return fail_sqlite(raw_, result, damaged_.get());
  return Statement(raw, damaged_.get());
}

Result<int64_t> Database::integer(std::string_view sql) {
  NSA_TRY_ASSIGN(Statement statement, prepare(sql));
  NSA_TRY_ASSIGN(const bool row, statement.step());
  return row ? statement.integer(0) : 0;
}

Result<std::string> Database::text(std::string_view sql) {
  NSA_TRY_ASSIGN(Statement statement, prepare(sql));
  NSA_TRY_ASSIGN(const bool row, statement.step());
  return row ? statement.text(0) : std::string();
}

int64_t Database::last_row_id() const {
  return sqlite3_last_insert_rowid(raw_);
}

bool Database::moved() const {
  int moved = 0;
  return sqlite3_file_control(raw_, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK &&
         moved != 0;
}

bool Database::in_transaction() const {
  return sqlite3_get_autocommit(raw_) == 0;
}

} // namespace nsa::store
