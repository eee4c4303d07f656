// manifest.json of a checkpoint. The target first corrects its checksum, because no fuzzer guesses
// it.
#include "common/manifest/manifest.h"

#include "common/base/checksum.h"
#include "common/base/json.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  auto tree = parse_json(fuzz::text_of(data, size), "manifest.json");
  if (!tree) return 0;
  if (tree->is_object()) {
    tree->erase("manifest_checksum");
    (*tree)["manifest_checksum"] = checksum_hex(tree->dump());
  }
  const auto m = manifest::from_json(*tree);
  if (!m) {
    fuzz::expect_error(m, "manifest");
    return 0;
  }
  for (const manifest::File& file : m->files)
    fuzz::expect(file.name.find('/') == std::string::npos && file.checksum.size() == 32, "files");
  const auto again = manifest::from_json(manifest::to_json(*m));
  fuzz::expect(again && manifest::to_json(*again) == manifest::to_json(*m), "reads the same");
  return 0;
}
