// Converts text to token ids and back. There are four tokenizers: "gpt2" (byte-pair encoding, with
// exactly tiktoken's results), "bytes" (one id a byte), "huggingface" (a tokenizer.json of
// byte-level BPE) and "sentencepiece" (a tokenizer.model). All accept any bytes, valid UTF-8 or
// not. With the first three decode(encode(x)) == x. A SentencePiece model may normalise text, and
// most put a space before it.
//
// The text of several tokens is the concatenation of each token's text.
//
// The text of a special token ("<|endoftext|>") has no special meaning here. It is encoded as
// ordinary characters, so that a document cannot fake a document boundary.
//
// A tokenizer is immutable: any thread may call it, and no call blocks.
#pragma once

#include "common/base/choice.h"
#include "common/base/result.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::dataset {

// Shards have 16-bit ids. Tokenizers with larger vocabularies are rejected.
using Token = uint16_t;

enum class TokenizerKind : uint8_t { kGpt2, kBytes, kHuggingFace, kSentencePiece };
constexpr auto choice_names(TokenizerKind) {
  return names_of("gpt2", "bytes", "huggingface", "sentencepiece");
}

class Tokenizer {
public:
  virtual ~Tokenizer() = default;

  virtual TokenizerKind kind() const = 0;

  // Ids are in [0, vocabulary_size), including the separator: 50,257 for gpt2, 257 for bytes,
  // otherwise as in the file.
  virtual int32_t vocabulary_size() const = 0;

  // Written before every document: 50,256 ("<|endoftext|>") for gpt2, 256 for bytes. encode() never
  // returns it.
  virtual Token separator() const = 0;
  virtual std::string separator_text() const { return "<|endoftext|>"; }

  // XXH3-128 of what defines the ids. Data sets with the same digest give ids the same meaning.
  virtual std::string digest() const = 0;

  // Appends the ids of `text` to `out`, without a separator.
  virtual void encode(std::string_view text, std::vector<Token>& out) const = 0;

  // The separator, and ids that the vocabulary lacks, become "<|endoftext|>" and "<|257|>", because
  // decoding is for human readers and never fails.
  virtual std::string decode(std::span<const Token> tokens) const = 0;
};

// Rows of an embedding table are padded to a multiple of 64 for the tensor cores: 50,304 and 320.
// No shard has ids above vocabulary_size().
inline constexpr int32_t padded_vocabulary_size(int32_t vocabulary_size) {
  return (vocabulary_size + 63) / 64 * 64;
}

// 256 ids for the bytes, and id 256 for the separator.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// XXH3-128 of the only accepted rank file. tools/fetch-tokenizer checks its SHA-256 when it fetches
// the file.
inline constexpr std::string_view kGpt2RanksChecksum = "aa5ef69a716d8a563cb2fbe95939bd2d";

// Reads gpt2.tiktoken: one line a token with the base64 of its bytes, a space, and its rank.
// Errors: kNotFound names the script that fetches it; kCorrupt if the file is not the expected one.
Result<std::unique_ptr<Tokenizer>> load_gpt2_tokenizer(const std::filesystem::path& ranks_file);

// Reads a tokenizer.json. Error: kUnsupported if it needs a feature that is not implemented.
Result<std::unique_ptr<Tokenizer>>
load_huggingface_tokenizer(const std::filesystem::path& tokenizer_json);

// Reads a tokenizer.model with SentencePiece's library, which it loads. Error: kUnsupported if this
// build has no SentencePiece, or the model has too many pieces or none that ends a text.
Result<std::unique_ptr<Tokenizer>>
load_sentencepiece_tokenizer(const std::filesystem::path& tokenizer_model);

// Returns whether users name this tokenizer by their own file.
constexpr bool is_named_by_file(TokenizerKind kind) {
  return kind == TokenizerKind::kHuggingFace || kind == TokenizerKind::kSentencePiece;
}

// `file` is the merge ranks for kGpt2, the tokenizer.json for kHuggingFace, the tokenizer.model for
// kSentencePiece; kBytes does not read it.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(TokenizerKind kind,
                                                  const std::filesystem::path& file);

// Name of that file's copy in a data set; empty if there is none.
std::string_view tokenizer_file_name(TokenizerKind kind);

// Copies the file into a data set, so that its text can be decoded anywhere.
Status copy_tokenizer(TokenizerKind kind, const std::filesystem::path& file,
                      const std::filesystem::path& data_set);

// Parses the name in a manifest. Error: kInvalidArgument names the nearest known name.
Result<TokenizerKind> parse_tokenizer(std::string_view name);

} // namespace nsa::dataset
