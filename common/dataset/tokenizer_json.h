// Hugging Face's tokenizer.json: what of it is understood, as plain values. A part that would
// change ids and is not understood is an error, never ignored. Pure.
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
    kPattern, // pieces are matches of a regular expression, and what lies between them
    kLiteral, // the same for a text
    kDigits,  // numbers
    kGpt2,    // as GPT-2's own expression cuts
  };
  Kind kind = Kind::kGpt2;
  std::string pattern;
  bool only_matches = false;      // what lies between them is left out
  bool individual_digits = false; // of kDigits
};

struct TokenizerJson {
  std::vector<NormalForm> normal_forms; // that text is brought into, one after the other
  std::vector<std::string> tokens;      // bytes by id; empty: an added token alone, or none
  std::vector<BpeVocabulary::Merge> merges;
  bool whole_tokens = false; // "ignore_merges"
  std::vector<CutStep> steps;
  std::vector<AddedToken> added;
  int32_t vocabulary_size = 0; // largest id + 1
  uint32_t separator = 0;      // of the special tokens the one that separates documents
  std::string separator_text;
};

// kCorrupt: not a tokenizer.json; kUnsupported: one of another kind, with what is in the way.
Result<TokenizerJson> parse_tokenizer_json(std::string_view text, std::string_view subject);

} // namespace nsa::dataset
