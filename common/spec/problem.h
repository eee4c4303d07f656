// A mistake in a file or an argument, with its place. All readers of keys report mistakes so. Pure.
#pragma once

#include <string>

namespace nsa::spec {

struct Problem {
  std::string file; // as given by the caller; "--set" for overrides, empty when not from a file
  int line = 0, column = 0; // 1-based; 0: no place
  std::string key;          // "train.sequence_length"
  std::string what;         // what is wrong
  std::string next;         // what to write instead; may be empty
};

// "run.toml:14:9: train.sequence_length: ..." and the hint on a second line.
std::string format_problem(const Problem& problem);

} // namespace nsa::spec
