// A shard header is refused, or announces exactly the tokens that are in the file.
#include "common/dataset/shard.h"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa::dataset;
  const auto tokens = parse_shard_header({reinterpret_cast<const char*>(data), size}, size);
  if (tokens && kShardHeaderBytes + static_cast<size_t>(*tokens) * sizeof(Token) != size)
    std::abort();
  return 0;
}
