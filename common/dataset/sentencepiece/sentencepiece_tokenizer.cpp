// A Tokenizer for a tokenizer.model of SentencePiece.
#include "common/dataset/sentencepiece_plug_in.h"

#include <sentencepiece_processor.h>
#include <stdexcept>

namespace nsa::dataset {

namespace {

constexpr int kMostPieces = 65'535; // shards have 16-bit ids
constexpr std::string_view kSpace = "\u2581";

// Returns the text of a piece: its space mark becomes a space, and "<0x0A>" becomes that byte.
std::string text_of_piece(const sentencepiece::SentencePieceProcessor& model, int id) {
  const std::string& piece = model.IdToPiece(id);
  if (model.IsByte(id))
    return std::string(1, static_cast<char>(std::stoi(piece.substr(3, 2), nullptr, 16)));
  if (model.IsUnknown(id)) return " \u2047 "; // as SentencePiece decodes it
  std::string text;
  for (size_t at = 0; at < piece.size();) {
    const bool space = std::string_view(piece).substr(at).starts_with(kSpace);
    text += space ? ' ' : piece[at];
    at += space ? kSpace.size() : 1;
  }
  return text;
}

class SentencePieceTokenizer final : public Tokenizer {
public:
  SentencePieceTokenizer(std::unique_ptr<sentencepiece::SentencePieceProcessor> model,
                         int separator, std::string digest)
      : model_(std::move(model)), separator_(static_cast<Token>(separator)),
        digest_(std::move(digest)) {
    for (int id = 0; id < model_->GetPieceSize(); ++id)
      texts_.push_back(text_of_piece(*model_, id));
  }

  TokenizerKind kind() const override { return TokenizerKind::kSentencePiece; }
  int32_t vocabulary_size() const override { return static_cast<int32_t>(texts_.size()); }
  Token separator() const override { return separator_; }
  std::string separator_text() const override { return texts_[separator_]; }
  std::string digest() const override { return digest_; }

  void encode(std::string_view text, std::vector<Token>& out) const override {
    std::vector<int> ids;
    if (const auto status = model_->Encode(text, &ids); !status.ok())
      throw std::runtime_error("SentencePiece: " + status.ToString());
    for (const int id : ids)
      out.push_back(static_cast<Token>(id));
  }

  std::string decode(std::span<const Token> tokens) const override {
    std::string text;
    for (const Token token : tokens)
      text += token < texts_.size() ? texts_[token] : "<|" + std::to_string(token) + "|>";
    return text;
  }

private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> model_;
  Token separator_;
  std::string digest_;
  std::vector<std::string> texts_; // indexed by id
};

} // namespace

extern "C" __attribute__((visibility("default"))) Result<std::unique_ptr<Tokenizer>>
nsa_make_sentencepiece_tokenizer(std::string_view content, std::string digest) {
  auto model = std::make_unique<sentencepiece::SentencePieceProcessor>();
  if (const auto status = model->LoadFromSerializedProto(content); !status.ok())
    return fail(ErrorCode::kCorrupt, "it is no model of SentencePiece: " + status.ToString(),
                "name the tokenizer.model of a model");
  if (model->GetPieceSize() > kMostPieces)
    return fail(ErrorCode::kUnsupported,
                "the tokenizer has " + std::to_string(model->GetPieceSize()) +
                    " pieces, and shards hold 16-bit ids, of which 65534 is the largest",
                "use a tokenizer with a smaller vocabulary");
  const int separator = model->eos_id() >= 0 ? model->eos_id() : model->bos_id();
  if (separator < 0)
    return fail(ErrorCode::kUnsupported,
                "the tokenizer has no piece for the end or the beginning of a text, and documents "
                "need one between them",
                "train it with an end piece: --eos_id");
  return std::make_unique<SentencePieceTokenizer>(std::move(model), separator, std::move(digest));
}

} // namespace nsa::dataset
