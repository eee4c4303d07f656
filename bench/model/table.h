// Output of nsa-bench model: JSON lines, or a table for people.
#pragma once

#include "bench/model/options.h"
#include "common/base/json.h"
#include "worker/runtime/runtime.h"

namespace nsa::bench {

// Prints the machine and the table's heading.
void print_head(const Options& options, const spec::RunSpec& spec, const runtime::Runtime& runtime);
void print_row(const nlohmann::ordered_json& row, bool json);

} // namespace nsa::bench
