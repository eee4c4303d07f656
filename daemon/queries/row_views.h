// Converts ledger rows to the types of the HTTP API. Pure functions; any thread may call them.
#pragma once

#include "common/wire/api_types.h"
#include "daemon/store/rows.h"

#include <vector>

namespace nsa::control {

wire::EventView view_of(const store::EventRow& row);
wire::AttemptView view_of(const store::AttemptRow& row);
wire::RankView view_of(const store::RankRow& row);
wire::ToggleView view_of(const store::ToggleRow& row);
wire::CheckpointView view_of(const store::CheckpointRow& row);
wire::AuditView view_of(const store::AuditRow& row);
wire::DescendantView view_of(const store::DescendantRow& row);

template <class Row> auto views_of(const std::vector<Row>& rows) {
  std::vector<decltype(view_of(rows.front()))> views;
  views.reserve(rows.size());
  for (const Row& row : rows)
    views.push_back(view_of(row));
  return views;
}

} // namespace nsa::control
