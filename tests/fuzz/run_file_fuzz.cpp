// A run file is read without a fault, and every problem has a place in the text. A correct file
// prints as a file that reads as the same.
#include "common/spec/parse.h"

#include <algorithm>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa::spec;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Parsed parsed = parse_run_file(text, "run.toml");
  // TOML does not count a carriage return or a Unicode separator as the end of a line.
  const int64_t lines = 1 + std::count(text.begin(), text.end(), '\n');
  for (const Problem& problem : parsed.problems)
    if (problem.line > lines || problem.column < 0 || problem.what.empty()) std::abort();
  if (!parsed.problems.empty()) return 0;
  const std::string printed = print_toml(parsed.spec, true);
  const Parsed again = parse_run_file(printed, "run.toml");
  if (!again.problems.empty() || print_toml(again.spec, true) != printed) std::abort();
  return 0;
}
