// Hugging Face's tokenizer.json. It is refused with the file's name, or becomes a vocabulary that
// encodes any bytes and decodes them to the same bytes.
#include "common/dataset/tokenizer_json.h"
#include "tests/fuzz/fuzz.h"

#include <algorithm>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nsa;
  const std::string_view text = fuzz::text_of(data, size);
  auto json = dataset::parse_tokenizer_json(text, "tokenizer.json");
  if (!json) {
    fuzz::expect_error(json, "tokenizer.json");
    return 0;
  }
  fuzz::expect(json->separator < static_cast<uint32_t>(json->vocabulary_size),
               "the separator is an id");
  for (const dataset::AddedToken& token : json->added)
    fuzz::expect(token.id < json->tokens.size() && !token.content.empty(), "added tokens are ids");
  const auto vocabulary =
      dataset::BpeVocabulary::build(json->tokens, json->merges, json->whole_tokens);
  if (!vocabulary) return 0;
  const std::string_view piece = text.substr(0, std::min<size_t>(text.size(), 4096));
  std::vector<dataset::Token> ids;
  vocabulary->encode_piece(piece, ids);
  std::string back;
  for (const dataset::Token id : ids)
    back += vocabulary->bytes(id);
  fuzz::expect(back == piece, "what was encoded decodes to the same bytes");
  return 0;
}
