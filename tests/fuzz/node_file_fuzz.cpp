// nsad.toml is read without a fault, and every problem lies inside the text and says what is wrong.
#include "common/spec/node_spec.h"
#include "tests/fuzz/fuzz.h"

#include <algorithm>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  const std::string_view text = fuzz::text_of(data, size);
  const spec::ParsedNode parsed = spec::parse_node_file(text, "nsad.toml");
  const int64_t lines = 1 + std::count(text.begin(), text.end(), '\n');
  fuzz::expect(parsed.problems.size() < 500, "problems are few");
  for (const spec::Problem& problem : parsed.problems)
    fuzz::expect(problem.line <= lines && problem.column >= 0 && !problem.what.empty(), "places");
  return 0;
}
