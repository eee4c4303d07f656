// Any text as JSON. It is refused with a short error that names its subject. Otherwise it becomes a
// tree that is not too deep and prints as the same tree. nsad reads summary.json, and the owner's
// name in a GPU's lock, in the same way.
#include "common/base/json.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  const std::string_view text = fuzz::text_of(data, size);
  const auto tree = parse_json(text, "fuzz.json");
  fuzz::expect(tree.has_value() == check_json(text, "fuzz.json").has_value(), "one door");
  if (!tree) {
    fuzz::expect_error(tree, "fuzz.json");
    return 0;
  }
  const std::string printed = tree->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto again = parse_json(printed, "printed", {.bytes = printed.size()});
  fuzz::expect(again && *again == *tree, "what was printed reads the same");
  if (tree->is_object()) (void)tree->value("came", nlohmann::json());
  return 0;
}
