// A manifest is refused, or comes back from its own text unchanged.
#include "common/dataset/manifest.h"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa::dataset;
  const auto manifest = parse_manifest({reinterpret_cast<const char*>(data), size});
  if (!manifest) return 0;
  const auto again = parse_manifest(to_json(*manifest));
  if (!again || to_json(*again) != to_json(*manifest)) std::abort();
  return 0;
}
