// Whether a run file and its data set fit each other: told before a rank starts, from dataset.json
// alone. What is in the shards is the ranks' to check.
#pragma once

#include "common/spec/parse.h"

#include <string>
#include <vector>

namespace nsa::dataset {

struct Fit {
  bool present =
      false; // there is a dataset.json in data.path; one that cannot be read is a problem
  std::vector<spec::Problem> problems;
};

// `parsed` with resolved paths. Keys that have a mistake already are left out.
Fit check_fit(const spec::Parsed& parsed, const std::string& file);

} // namespace nsa::dataset
