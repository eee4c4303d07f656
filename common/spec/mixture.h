// [[data.source]]: the data sets that a run mixes, and their shares. Pure; no I/O.
#pragma once

#include "common/spec/field.h"
#include "common/spec/reader.h"
#include "common/spec/run_spec.h"

#include <string>
#include <vector>

namespace nsa::spec {

inline constexpr size_t kMostSources = 64;

// The keys of a table [[data.source]].
FieldTable source_fields(DataSource& source);

// The data sets of a run: those of its tables, or data.path alone.
std::vector<DataSource> sources_of(const DataSection& data);
// The key that names the folder of source `i`: "data.path", or "data.source[2].path".
std::string source_key(const DataSection& data, size_t i);
// What tables and metrics call them: the folder's name, with a number where an earlier one has it.
std::vector<std::string> source_names(const std::vector<DataSource>& sources);

// Weights as the smallest integers of the same proportions, exactly: 0.7 and 0.3 are 7 and 3. Of
// sources that check_sources() has passed.
std::vector<int64_t> whole_weights(const std::vector<DataSource>& sources);

// Tables beside data.path, a folder twice, weights that no integers stand for.
void check_sources(const RunSpec& spec, Reading& reading);

} // namespace nsa::spec
