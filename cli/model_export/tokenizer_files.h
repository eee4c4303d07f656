// Makes tokenizer.json and tokenizer_config.json for Hugging Face's library from our tokenizers.
// They give the same ids for the same text, except that the separator's text becomes the separator
// there. If the data set was made with a tokenizer.json or tokenizer.model, that file stays
// unchanged.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "common/dataset/tokenizer.h"

#include <filesystem>

namespace nsa::model_export {

inline constexpr const char* kSeparatorText = "<|endoftext|>";

struct TokenizerFile {
  std::string content;   // content of tokenizer.json or tokenizer.model
  int64_t separator = 0; // the id before each document
  std::string separator_text = kSeparatorText;
};
// `ranks_file` and the errors are those of dataset::load_tokenizer().
Result<TokenizerFile> make_tokenizer_file(dataset::TokenizerKind kind,
                                          const std::filesystem::path& ranks_file);
nlohmann::ordered_json tokenizer_config(int64_t longest_text, const std::string& separator_text);

} // namespace nsa::model_export
