// Checks whether a run file and its data set fit each other, from dataset.json alone and before a
// rank starts. The ranks check the content of the shards.
#pragma once

#include "common/base/file.h"
#include "common/spec/parse.h"

#include <string>
#include <vector>

namespace nsa::dataset {

// A folder without a dataset.json. One that cannot be read is a problem.
struct Absent {
  std::string key, path; // "data.path" or "data.source[0].path"
  std::string what, next;
};

struct Fit {
  std::vector<Absent> absent;
  std::vector<spec::Problem> problems;
};

// `parsed` with resolved paths. Keys that have a mistake already are left out. Reads one file a
// data set, of at most kMaxManifestBytes, by `open`.
Fit check_fit(const spec::Parsed& parsed, const std::string& file,
              const FileOpener& open = open_regular_file);

} // namespace nsa::dataset
