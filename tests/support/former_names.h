// The names that users typed or scraped at b70f1e4 (names_of_b70f1e4.txt). Each still works. If it
// is an old name now, its use prints a warning.
#pragma once

#include "common/base/file.h"
#include "common/base/text.h"
#include "tests/support/test_paths.h"

#include <string>
#include <vector>

namespace nsa::test {

// `kind` is "run-key", "run-value", "node-key", "toggle", "verb", "option", "metric" or "phase".
inline std::vector<std::string> former_names(const std::string& kind) {
  std::vector<std::string> names;
  const auto text = read_file(source_folder() + "/tests/support/names_of_b70f1e4.txt");
  for (const std::string& line : split(text.value_or(""), '\n'))
    if (line.starts_with(kind + " ")) names.push_back(line.substr(kind.size() + 1));
  return names;
}

} // namespace nsa::test
