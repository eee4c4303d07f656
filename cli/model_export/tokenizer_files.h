// tokenizer.json and tokenizer_config.json of our two tokenizers, for Hugging Face's tokenizers:
// the same ids for the same text, but that the text "<|endoftext|>" is the separator there.
#pragma once

#include "common/base/json.h"
#include "common/base/result.h"
#include "common/dataset/tokenizer.h"

#include <filesystem>

namespace nsa::model_export {

inline constexpr const char* kSeparatorText = "<|endoftext|>";

struct TokenizerFile {
  nlohmann::ordered_json json; // tokenizer.json
  int64_t separator = 0;       // the id before each document
};
// `ranks_file` is read for kGpt2 alone: kNotFound and kCorrupt as dataset::load_gpt2_tokenizer().
Result<TokenizerFile> make_tokenizer_file(dataset::TokenizerKind kind,
                                          const std::filesystem::path& ranks_file);
nlohmann::ordered_json tokenizer_config(int64_t longest_text);

} // namespace nsa::model_export
