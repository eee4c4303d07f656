// The supported parts of Hugging Face's tokenizer.json, as plain values. An unsupported part that
// would change ids is an error, never ignored. No I/O.
#pragma once

#include "common/base/result.h"
#include "common/dataset/bpe.h"
#include "common/dataset/tokenizer.h"
#include "common/dataset/unicode_normal.h"

#include <string>
#include <string_view>
#include <vector>

namespace nsa::dataset {

struct AddedToken {
  uint32_t id = 0;
  std::string content;
  bool special = false, normalized = false;
};

struct CutStep {
  enum class Kind : uint8_t {
    kPattern, // pieces are matches of a regular expression, and the text between them
    kLiteral, // the same for a plain text
    kDigits,  // numbers
    kGpt2,    // pieces of GPT-2's regular expression
  };
  Kind kind = Kind::kGpt2;
  std::string pattern;
  bool only_matches = false;      // drop the text between matches
  bool individual_digits = false; // for kDigits
};

struct TokenizerJson {
  std::vector<NormalForm> normal_forms; // applied to text, one after the other
  std::vector<std::string> tokens;      // bytes by id; empty: only an added token, or unused
  std::vector<BpeVocabulary::Merge> merges;
  bool whole_tokens = false; // "ignore_merges"
  std::vector<CutStep> steps;
  std::vector<AddedToken> added;
  int32_t vocabulary_size = 0; // largest id + 1
  uint32_t separator = 0;      // the special token that separates documents
  std::string separator_text;
};

// Errors: kCorrupt if it is not a tokenizer.json; kUnsupported names the part that is not
// supported.
Result<TokenizerJson> parse_tokenizer_json(std::string_view text, std::string_view subject);

} // namespace nsa::dataset
