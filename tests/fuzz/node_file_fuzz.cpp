// nsad.toml and nsactl.toml are read without a fault. Every problem has a place in the text and
// says what is wrong.
#include "common/spec/client_spec.h"
#include "common/spec/node_spec.h"
#include "tests/fuzz/fuzz.h"

#include <algorithm>

namespace {

void check(std::string_view text, const std::vector<nsa::spec::Problem>& problems) {
  using nsa::fuzz::expect;
  const int64_t lines = 1 + std::count(text.begin(), text.end(), '\n');
  expect(problems.size() < 500, "problems are few");
  for (const nsa::spec::Problem& problem : problems)
    expect(problem.line <= lines && problem.column >= 0 && !problem.what.empty(), "places");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  const std::string_view text = fuzz::text_of(data, size);
  check(text, spec::parse_node_file(text, "nsad.toml").problems);
  spec::ClientSpec client;
  check(text, spec::read_client_file(text, "nsactl.toml", client));
  return 0;
}
