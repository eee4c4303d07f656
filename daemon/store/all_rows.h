// Reads all rows of a statement.
#pragma once

#include "daemon/store/sqlite.h"

#include <vector>

namespace nsa::store {

// Collects the result of `take` for each row.
template <class T, class Take> Result<std::vector<T>> all_rows(Statement& statement, Take take) {
  std::vector<T> rows;
  while (true) {
    NSA_TRY_ASSIGN(const bool row, statement.step());
    if (!row) return rows;
    rows.push_back(take(statement));
  }
}

} // namespace nsa::store
