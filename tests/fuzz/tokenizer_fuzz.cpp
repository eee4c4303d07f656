// Merge ranks of a tokenizer, a file of lines "base64 rank". It is refused with the line, or
// becomes a vocabulary that encodes any bytes and decodes them to the same bytes.
#include "common/dataset/bpe.h"
#include "tests/fuzz/fuzz.h"

#include <algorithm>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  const std::string_view text = fuzz::text_of(data, size);
  auto tokens = dataset::parse_ranks(text);
  if (!tokens) {
    fuzz::expect_error(tokens, "line ");
    return 0;
  }
  const auto vocabulary = dataset::BpeVocabulary::build(std::move(*tokens));
  if (!vocabulary) return 0;
  const std::string_view piece = text.substr(0, std::min<size_t>(text.size(), 4096));
  if (piece.empty()) return 0;
  std::vector<dataset::Token> ids;
  vocabulary->encode_piece(piece, ids);
  std::string back;
  for (const dataset::Token id : ids)
    back += vocabulary->bytes(id);
  fuzz::expect(back == piece, "what was encoded decodes to the same bytes");
  return 0;
}
