// Checks whether a run file and its data set fit each other, from dataset.json alone and before a
// rank starts. The ranks check the content of the shards.
#pragma once

#include "common/base/file.h"
#include "common/spec/parse.h"

#include <string>
#include <vector>

namespace nsa::dataset {

struct Fit {
  bool present =
      false; // there is a dataset.json in data.path; one that cannot be read is a problem
  std::vector<spec::Problem> problems;
};

// `parsed` with resolved paths. Keys that have a mistake already are left out. Reads one file, of
// at most kMaxManifestBytes, by `open`.
Fit check_fit(const spec::Parsed& parsed, const std::string& file,
              const FileOpener& open = open_regular_file);

} // namespace nsa::dataset
