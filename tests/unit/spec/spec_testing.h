// A correct run file. Tests change it in one place.
#pragma once

#include "common/spec/parse.h"

#include <string>
#include <vector>

namespace nsa::spec {

inline const std::string kGoodFile = R"(schema = 1
[data]
path = "text"
[train]
steps = 100
)";

inline std::vector<std::string> formatted(const std::vector<Problem>& problems) {
  std::vector<std::string> out;
  for (const Problem& problem : problems)
    out.push_back(format_problem(problem));
  return out;
}

// Returns the problems of the correct file with these overrides.
inline std::vector<Problem> problems_with(const std::vector<std::string>& overrides) {
  return parse_run_file(kGoodFile, "run.toml", overrides).problems;
}

} // namespace nsa::spec
