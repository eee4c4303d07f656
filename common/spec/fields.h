// The field table of run.toml, and hints for keys that people write by mistake. Pure.
#pragma once

#include "common/spec/field.h"
#include "common/spec/run_spec.h"

namespace nsa::spec {

// Every key of run.toml except those of [toggles], which the toggle registry owns. In the order in
// which files are printed.
FieldTable run_fields(RunSpec& spec);

// What each table is for, in the same order; "" for `schema`.
struct TableMeaning {
  std::string_view name, meaning;
};
const std::vector<TableMeaning>& run_tables();

// Keys and tables that people will look for and that are not built: refused with the reason.
struct NotBuilt {
  std::string_view key; // a table, or table.key
  std::string_view reason;
};
const std::vector<NotBuilt>& keys_not_built();

} // namespace nsa::spec
