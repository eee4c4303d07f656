// RAII owners for SQLite's C API: a connection and prepared statements that close themselves.
// Errors are values; their codes tell apart what the caller must handle (a full disk, a corrupt
// file). One thread for each connection.
#pragma once

#include "common/base/choice_or_text.h"
#include "common/base/result.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct sqlite3;
struct sqlite3_stmt;

namespace nsa::store {

class Statement {
public:
  Statement() = default;
  Statement(sqlite3_stmt* raw, bool* damaged) : raw_(raw), damaged_(damaged) {}
  Statement(Statement&& other) noexcept;
  Statement& operator=(Statement&& other) noexcept;
  ~Statement();

  // Binds from parameter 1 on, in the order of the arguments.
  template <class... Values> Statement& bind(const Values&... values) {
    reset();
    int index = 0;
    (bind_one(++index, values), ...);
    return *this;
  }

  Result<bool> step(); // true: a row is available
  Status run();        // steps to the end; for statements without rows
  int64_t integer(int column) const;
  double real(int column) const;
  std::string text(int column) const;

private:
  void reset();
  void bind_one(int index, int64_t value);
  void bind_one(int index, uint64_t value) { bind_one(index, static_cast<int64_t>(value)); }
  void bind_one(int index, int value) { bind_one(index, int64_t{value}); }
  void bind_one(int index, bool value) { bind_one(index, int64_t{value}); }
  void bind_one(int index, double value);
  void bind_one(int index, std::string_view value);
  void bind_one(int index, const std::string& value) { bind_one(index, std::string_view(value)); }
  void bind_one(int index, const char* value) { bind_one(index, std::string_view(value)); }
  template <ChoiceEnum E> void bind_one(int index, E value) { bind_one(index, name_of(value)); }
  template <ChoiceEnum E> void bind_one(int index, const ChoiceOrText<E>& value) {
    bind_one(index, value.view());
  }

  sqlite3_stmt* raw_ = nullptr;
  bool* damaged_ = nullptr; // flag of its database
};

class Database {
public:
  // kCorrupt: not a database, or a damaged one. kExhausted: no space.
  static Result<Database> open(const std::string& path);
  Database(Database&& other) noexcept;
  Database& operator=(Database&& other) noexcept;
  ~Database();

  Status execute(const std::string& sql); // one or more statements; rows are dropped
  Result<Statement> prepare(std::string_view sql);
  Result<int64_t> integer(std::string_view sql); // first column of the first row; 0 without rows
  Result<std::string> text(std::string_view sql);
  int64_t last_row_id() const;
  bool in_transaction() const;
  // Whether SQLite has found a damaged page since the database was opened.
  bool damaged() const { return *damaged_; }
  // Whether the file was deleted or renamed since. Later writes are then lost.
  bool moved() const;

private:
  explicit Database(sqlite3* raw) : raw_(raw) {}
  sqlite3* raw_ = nullptr;
  std::unique_ptr<bool> damaged_ = std::make_unique<bool>(false); // statements point to it
};

} // namespace nsa::store
