// A mistake in a file or an argument, with its position. All readers of keys report mistakes this
// way. No I/O.
#pragma once

#include <string>

namespace nsa::spec {

struct Problem {
  std::string file; // as the caller gave it; "--set" for overrides, empty if not from a file
  int line = 0, column = 0; // from 1; 0: no position
  std::string key;          // for example "train.sequence_length"
  std::string what;         // what is wrong
  std::string next;         // what to write instead; may be empty
};

// Formats "run.toml:14:9: train.sequence_length: ..." with the hint on a second line.
std::string format_problem(const Problem& problem);

} // namespace nsa::spec
