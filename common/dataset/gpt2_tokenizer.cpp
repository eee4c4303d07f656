// GPT-2's tokenizer: the pre-tokenizer and the merge ranks of gpt2.tiktoken.
#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/base/text.h"
#include "common/dataset/bpe.h"
#include "common/dataset/pretokenize.h"
#include "common/dataset/tokenizer.h"

#include <array>
#include <charconv>
#include <optional>

namespace nsa::dataset {
namespace {

constexpr int32_t kVocabularySize = 50257;
constexpr Token kSeparator = 50256;

class Gpt2Tokenizer final : public Tokenizer {
public:
  explicit Gpt2Tokenizer(BpeVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  TokenizerKind kind() const override { return TokenizerKind::kGpt2; }
  int32_t vocabulary_size() const override { return kVocabularySize; }
  Token separator() const override { return kSeparator; }
  std::string digest() const override { return std::string(kGpt2RanksChecksum); }

  void encode(std::string_view text, std::vector<Token>& out) const override {
    for (size_t at = 0; at < text.size();) {
      const size_t length = piece_length(text, at);
      vocabulary_.encode_piece(text.substr(at, length), out);
      at += length;
    }
  }

  std::string decode(std::span<const Token> tokens) const override {
    std::string text;
    for (const Token token : tokens) {
      if (token < vocabulary_.size())
        text += vocabulary_.bytes(token);
      else if (token == kSeparator)
        text += "<|endoftext|>";
      else
        text += "<|" + std::to_string(token) + "|>";
    }
    return text;
  }

private:
  BpeVocabulary vocabulary_;
};

// Decodes RFC 4648 section 4 with required padding; returns nullopt for anything else.
std::optional<std::string> decode_base64(std::string_view text) {
  static const std::array<int8_t, 256> value = [] {
    std::array<int8_t, 256> table{};
    table.fill(-1);
    constexpr std::string_view kAlphabet =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < kAlphabet.size(); ++i)
      table[static_cast<unsigned char>(kAlphabet[i])] = static_cast<int8_t>(i);
    return table;
  }();
  if (text.empty() || text.size() % 4 != 0) return {};
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  std::string bytes;
  uint32_t bits = 0;
  int held = 0;
  for (const char c : text.substr(0, text.size() - padding)) {
    const int8_t six = value[static_cast<unsigned char>(c)];
    if (six < 0) return {};
    bits = bits << 6 | static_cast<uint32_t>(six);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes.push_back(static_cast<char>(bits >> held & 0xFF));
    }
  }
  return bytes;
}

} // namespace

Result<std::vector<std::string>> parse_ranks(std::string_view content) {
  std::vector<std::string> tokens;
  tokens.reserve(kSeparator);
  while (!content.empty()) {
    const size_t end = std::min(content.find('\n'), content.size());
    const std::string_view line = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    const size_t space = line.find(' ');
    auto bytes = decode_base64(line.substr(0, space));
    size_t rank = 0;
    const std::string_view digits = space == line.npos ? "" : line.substr(space + 1);
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (!bytes || parsed.ec != std::errc{} || parsed.ptr != digits.data() + digits.size() ||
        rank != tokens.size())
      return fail(ErrorCode::kCorrupt, "line " + std::to_string(tokens.size() + 1) +
                                           " is not 'base64 rank' with ranks from 0 upwards");
    tokens.push_back(std::move(*bytes));
  }
  return tokens;
}

Result<std::unique_ptr<Tokenizer>> load_gpt2_tokenizer(const std::filesystem::path& ranks_file) {
  const std::string next = "fetch it with tools/fetch-tokenizer";
  auto content = read_file(ranks_file, size_t{16} << 20);
  if (!content) {
    Error error = std::move(content).error().within("merge ranks of the gpt2 tokenizer");
    error.next = next;
    return fail(std::move(error));
  }
  if (const std::string found = checksum_hex(*content); found != kGpt2RanksChecksum)
    return fail(ErrorCode::kCorrupt,
                ranks_file.string() + " is not the GPT-2 rank file: XXH3-128 is " + found +
                    ", expected " + std::string(kGpt2RanksChecksum),
                next);
  const std::string doing = "reading " + ranks_file.string();
  auto tokens = parse_ranks(*content);
  if (!tokens) return fail(std::move(tokens).error().within(doing));
  auto vocabulary = BpeVocabulary::build(std::move(*tokens));
  if (!vocabulary) return fail(std::move(vocabulary).error().within(doing));
  return std::make_unique<Gpt2Tokenizer>(std::move(*vocabulary));
}

} // namespace nsa::dataset
