// A run file that is right, for tests that make it wrong in one place.
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

// The problems of the good file with these keys set otherwise.
inline std::vector<Problem> problems_with(const std::vector<std::string>& overrides) {
  return parse_run_file(kGoodFile, "run.toml", overrides).problems;
}

} // namespace nsa::spec
