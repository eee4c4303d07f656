// tokenizer.json and tokenizer_config.json of our tokenizers, for Hugging Face's library: the same
// ids for the same text, but that the text of the separator is the separator there. A
// tokenizer.json or tokenizer.model that the data set was made with stays as it is.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "common/dataset/tokenizer.h"

#include <filesystem>

namespace nsa::model_export {

inline constexpr const char* kSeparatorText = "<|endoftext|>";

struct TokenizerFile {
  std::string content;   // of tokenizer.json, or of tokenizer.model
  int64_t separator = 0; // the id before each document
  std::string separator_text = kSeparatorText;
};
// `ranks_file`, and errors, as dataset::load_tokenizer().
Result<TokenizerFile> make_tokenizer_file(dataset::TokenizerKind kind,
                                          const std::filesystem::path& ranks_file);
nlohmann::ordered_json tokenizer_config(int64_t longest_text, const std::string& separator_text);

} // namespace nsa::model_export
