#include "common/dataset/tokenizer.h"

#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/base/text.h"

namespace nsa::dataset {
namespace {

class ByteTokenizer final : public Tokenizer {
public:
  TokenizerKind kind() const override { return TokenizerKind::kBytes; }
  int32_t vocabulary_size() const override { return 257; }
  Token separator() const override { return 256; }
  std::string digest() const override { return checksum_hex("bytes: id = byte, separator 256"); }

  void encode(std::string_view text, std::vector<Token>& out) const override {
    const size_t before = out.size();
    out.resize(before + text.size());
    for (size_t i = 0; i < text.size(); ++i)
      out[before + i] = static_cast<unsigned char>(text[i]);
  }

  std::string decode(std::span<const Token> tokens) const override {
    std::string text;
    for (const Token token : tokens) {
      if (token < 256)
        text.push_back(static_cast<char>(token));
      else if (token == separator())
        text += "<|endoftext|>";
      else
        text += "<|" + std::to_string(token) + "|>";
    }
    return text;
  }
};

} // namespace

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(TokenizerKind kind,
                                                  const std::filesystem::path& file) {
  if (kind == TokenizerKind::kBytes) return make_byte_tokenizer();
  if (kind == TokenizerKind::kGpt2) return load_gpt2_tokenizer(file);
  auto loaded = kind == TokenizerKind::kSentencePiece ? load_sentencepiece_tokenizer(file)
                                                      : load_huggingface_tokenizer(file);
  if (!loaded && loaded.error().next.empty())
    loaded.error().next =
        "name a " + std::string(tokenizer_file_name(kind)) + " that can be read, or gpt2 or bytes";
  return loaded;
}

std::string_view tokenizer_file_name(TokenizerKind kind) {
  switch (kind) {
  case TokenizerKind::kGpt2:
    return "tokenizer.tiktoken";
  case TokenizerKind::kHuggingFace:
    return "tokenizer.json";
  case TokenizerKind::kSentencePiece:
    return "tokenizer.model";
  case TokenizerKind::kBytes:
    break;
  }
  return "";
}

Status copy_tokenizer(TokenizerKind kind, const std::filesystem::path& file,
                      const std::filesystem::path& data_set) {
  const std::filesystem::path copy = data_set / tokenizer_file_name(kind);
  std::error_code error;
  if (tokenizer_file_name(kind).empty() || std::filesystem::equivalent(file, copy, error))
    return {};
  NSA_TRY_ASSIGN(const std::string content, read_file(file));
  return write_file_atomic(copy, content);
}

Result<TokenizerKind> parse_tokenizer(std::string_view name) {
  if (const auto kind = choice_from<TokenizerKind>(name)) return *kind;
  const auto& names = kChoiceNames<TokenizerKind>;
  const auto nearest = nearest_name(name, {names.begin(), names.end()});
  return fail(ErrorCode::kInvalidArgument, "there is no tokenizer '" + std::string(name) + "'",
              nearest ? "did you mean '" + *nearest + "'?"
                      : "use 'gpt2', 'bytes' or the path of a tokenizer.json or tokenizer.model");
}

} // namespace nsa::dataset
