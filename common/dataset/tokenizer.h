// Text <-> token ids. Four tokenizers: "gpt2" (byte-pair encoding, tiktoken's results exactly),
// "bytes" (one id a byte), "huggingface" (a tokenizer.json of byte-level BPE) and "sentencepiece"
// (a tokenizer.model). All take any bytes, valid UTF-8 or not. With the first three
// decode(encode(x)) == x; a SentencePiece model may normalise text, and most put a space before it.
//
// The text of some tokens is that of each of them, one after the other.
//
// The text of a special token ("<|endoftext|>") has no special meaning here: it is encoded as the
// ordinary characters it is, so that a document cannot forge a document boundary.
//
// A tokenizer is immutable after it is made: any thread may call it, no call blocks.
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

// Shards hold 16-bit ids; both vocabularies fit.
using Token = uint16_t;

enum class TokenizerKind : uint8_t { kGpt2, kBytes, kHuggingFace, kSentencePiece };
constexpr auto choice_names(TokenizerKind) {
  return names_of("gpt2", "bytes", "huggingface", "sentencepiece");
}

class Tokenizer {
public:
  virtual ~Tokenizer() = default;

  virtual TokenizerKind kind() const = 0;

  // Ids lie in [0, vocabulary_size), the separator included: 50,257 and 257, or as the file says.
  virtual int32_t vocabulary_size() const = 0;

  // Written before every document: 50,256 ("<|endoftext|>") and 256. Never produced by encode().
  virtual Token separator() const = 0;
  virtual std::string separator_text() const { return "<|endoftext|>"; }

  // XXH3-128 of what defines the ids; two data sets agree on the meaning of ids when it is equal.
  virtual std::string digest() const = 0;

  // Appends the ids of `text` to `out`, without a separator.
  virtual void encode(std::string_view text, std::vector<Token>& out) const = 0;

  // Ids at or past vocabulary_size() and the separator are spelled out, as "<|257|>" and
  // "<|endoftext|>": decoding is for people's eyes and never fails.
  virtual std::string decode(std::span<const Token> tokens) const = 0;
};

// Rows of an embedding table are padded to a multiple of 64, for the matrix units: 50,304 and 320.
// The ids past vocabulary_size() occur in no shard.
inline constexpr int32_t padded_vocabulary_size(int32_t vocabulary_size) {
  return (vocabulary_size + 63) / 64 * 64;
}

// 256 ids for the bytes, id 256 for the separator.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

// XXH3-128 of the one accepted rank file (its sha256 is checked where it is fetched,
// tools/fetch-tokenizer).
inline constexpr std::string_view kGpt2RanksChecksum = "aa5ef69a716d8a563cb2fbe95939bd2d";

// Reads gpt2.tiktoken: one line a token, base64 of its bytes, a space, its rank. kNotFound names
// the script that fetches it; kCorrupt when the file is another than the pinned one.
Result<std::unique_ptr<Tokenizer>> load_gpt2_tokenizer(const std::filesystem::path& ranks_file);

// Reads a tokenizer.json. kUnsupported when a part of it that matters is not built.
Result<std::unique_ptr<Tokenizer>>
load_huggingface_tokenizer(const std::filesystem::path& tokenizer_json);

// Reads a tokenizer.model by SentencePiece's library, which is loaded for it. kUnsupported when
// this build has none, or the model has too many pieces or none that ends a text.
Result<std::unique_ptr<Tokenizer>>
load_sentencepiece_tokenizer(const std::filesystem::path& tokenizer_model);

// Whether people name it by a file of their own.
constexpr bool is_named_by_file(TokenizerKind kind) {
  return kind == TokenizerKind::kHuggingFace || kind == TokenizerKind::kSentencePiece;
}

// `file`: of kGpt2 the merge ranks, of kHuggingFace the tokenizer.json, of kSentencePiece the
// tokenizer.model; of kBytes it is not read.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(TokenizerKind kind,
                                                  const std::filesystem::path& file);

// Name of the copy of that file in a data set; empty where there is none.
std::string_view tokenizer_file_name(TokenizerKind kind);

// Into a data set, so that its text can be decoded anywhere.
Status copy_tokenizer(TokenizerKind kind, const std::filesystem::path& file,
                      const std::filesystem::path& data_set);

// The name that a manifest has. kInvalidArgument names the nearest known name.
Result<TokenizerKind> parse_tokenizer(std::string_view name);

} // namespace nsa::dataset
