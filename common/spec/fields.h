// The field table of run.toml, and hints for keys that users write by mistake. No I/O.
#pragma once

#include "common/spec/field.h"
#include "common/spec/run_spec.h"

namespace nsa::spec {

// Every key of run.toml except those of [toggles], which the toggle registry has. Files are printed
// in this order.
FieldTable run_fields(RunSpec& spec);

// The purpose of each table, in the same order; "" is for `schema`.
struct TableMeaning {
  std::string_view name, meaning;
};
const std::vector<TableMeaning>& run_tables();

// Keys and tables that users may expect but that are not implemented. They are rejected with the
// reason.
struct NotBuilt {
  std::string_view key; // a table, or table.key
  std::string_view reason;
};
const std::vector<NotBuilt>& keys_not_built();

} // namespace nsa::spec
