// Checks whether a run file and its data set match, from dataset.json alone and before a rank
// starts. The ranks check the content of the shards.
#pragma once

#include "common/base/file.h"
#include "common/spec/parse.h"

#include <string>
#include <vector>

namespace nsa::dataset {

// A folder without a dataset.json. A dataset.json that cannot be read is a problem instead.
struct Absent {
  std::string key, path; // for example "data.path" or "data.source[0].path"
  std::string what, next;
};

struct Fit {
  std::vector<Absent> absent;
  std::vector<spec::Problem> problems;
};

// `parsed` has resolved paths. Keys that already have an error are skipped. Reads one file for each
// data set, of at most kMaxManifestBytes, with `open`.
Fit check_fit(const spec::Parsed& parsed, const std::string& file,
              const FileOpener& open = open_regular_file);

} // namespace nsa::dataset
