// [[data.source]]: the data sets that a run mixes, and their weights. No I/O.
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

// Returns the data sets of a run: those of its tables, or the one in data.path.
std::vector<DataSource> sources_of(const DataSection& data);
// Returns the key with the folder of source `i`: "data.path", or "data.source[2].path".
std::string source_key(const DataSection& data, size_t i);
// Returns the sources' names in tables and metrics: the folder's name, with a number if an earlier
// source has the same name.
std::vector<std::string> source_names(const std::vector<DataSource>& sources);

// Returns the weights as the smallest integers of the same proportions, exactly: 0.7 and 0.3 become
// 7 and 3. The sources must have passed check_sources().
std::vector<int64_t> whole_weights(const std::vector<DataSource>& sources);

// Rejects tables beside data.path, repeated folders, and weights that integers cannot represent.
void check_sources(const RunSpec& spec, Reading& reading);

} // namespace nsa::spec
