// A Tokenizer for a tokenizer.json of byte-level BPE.
#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/dataset/pretokenize.h"
#include "common/dataset/split_pattern.h"
#include "common/dataset/tokenizer_json.h"
#include "common/dataset/unicode.h"

#include <algorithm>
#include <array>

namespace nsa::dataset {
namespace {

constexpr size_t kMostTokenizerBytes = size_t{64} << 20;

// Finds added tokens: the leftmost, and among those at the same position the longest.
class AddedTokens {
public:
  void add(const AddedToken& token) {
    of_byte_[static_cast<unsigned char>(token.content[0])].push_back(token);
    auto& list = of_byte_[static_cast<unsigned char>(token.content[0])];
    std::stable_sort(list.begin(), list.end(), [](const AddedToken& a, const AddedToken& b) {
      return a.content.size() > b.content.size();
    });
    any_ = any_ || !token.special;
  }

  // False if all added tokens are special: these are ordinary characters in text.
  bool any() const { return any_; }

  // Returns the token that begins at `at`, or nullptr.
  const AddedToken* at(std::string_view text, size_t at) const {
    for (const AddedToken& token : of_byte_[static_cast<unsigned char>(text[at])])
      if (text.substr(at, token.content.size()) == token.content) return &token;
    return nullptr;
  }

private:
  std::array<std::vector<AddedToken>, 256> of_byte_;
  bool any_ = false;
};

struct ReadyStep {
  CutStep step;
  std::optional<SplitPattern> pattern;
};

class HuggingFaceTokenizer final : public Tokenizer {
public:
  HuggingFaceTokenizer(TokenizerJson json, BpeVocabulary vocabulary, std::vector<ReadyStep> cuts,
                       std::string digest)
      : json_(std::move(json)), vocabulary_(std::move(vocabulary)), cuts_(std::move(cuts)),
        digest_(std::move(digest)), added_text_(static_cast<size_t>(json_.vocabulary_size)) {
    for (AddedToken token : json_.added) {
      added_text_[token.id] = token.content;
      if (token.normalized)
        token.content = normal(std::move(token.content)); // normalised like the text around it
      (token.normalized ? normalized_ : exact_).add(token);
    }
  }

  TokenizerKind kind() const override { return TokenizerKind::kHuggingFace; }
  int32_t vocabulary_size() const override { return json_.vocabulary_size; }
  Token separator() const override { return static_cast<Token>(json_.separator); }
  std::string separator_text() const override { return json_.separator_text; }
  std::string digest() const override { return digest_; }

  void encode(std::string_view text, std::vector<Token>& out) const override {
    around(exact_, text, out, [&](std::string_view between) {
      const auto write = [&](std::string_view ordinary) { cut(ordinary, 0, out); };
      if (json_.normal_forms.empty()) return around(normalized_, between, out, write);
      around(normalized_, normal(std::string(between)), out, write);
    });
  }

  std::string decode(std::span<const Token> tokens) const override {
    std::string text;
    for (const Token token : tokens) {
      if (token < vocabulary_.size() && !vocabulary_.bytes(token).empty())
        text += vocabulary_.bytes(token);
      else if (token < added_text_.size() && !added_text_[token].empty())
        text += added_text_[token];
      else
        text += "<|" + std::to_string(token) + "|>";
    }
    return text;
  }

private:
  std::string normal(std::string text) const {
    for (const NormalForm form : json_.normal_forms)
      text = normalised(text, form);
    return text;
  }

  // Writes the added tokens in `text`, and calls `ordinary` with the text before, between and after
  // them. Special tokens are found, too, because a longer one hides others, but they stay ordinary
  // text.
  template <class Ordinary>
  static void around(const AddedTokens& added, std::string_view text, std::vector<Token>& out,
                     const Ordinary& ordinary) {
    size_t begin = 0;
    for (size_t at = 0; added.any() && at < text.size();) {
      const AddedToken* token = added.at(text, at);
      const size_t length = token == nullptr ? 1 : token->content.size();
      if (token != nullptr && !token->special) {
        if (at > begin) ordinary(text.substr(begin, at - begin));
        out.push_back(static_cast<Token>(token->id));
        begin = at + length;
      }
      at += length;
    }
    if (begin < text.size()) ordinary(text.substr(begin));
  }

  // Cuts by this step and the later ones, and writes the tokens of the pieces.
  void cut(std::string_view text, size_t step, std::vector<Token>& out) const {
    if (step == cuts_.size()) return vocabulary_.encode_piece(text, out);
    const ReadyStep& with = cuts_[step];
    switch (with.step.kind) {
    case CutStep::Kind::kGpt2:
      for (size_t at = 0, length = 0; at < text.size(); at += length) {
        length = piece_length(text, at);
        cut(text.substr(at, length), step + 1, out);
      }
      return;
    case CutStep::Kind::kDigits:
      return cut_digits(text, step, out);
    case CutStep::Kind::kPattern:
    case CutStep::Kind::kLiteral:
      break;
    }
    while (!text.empty()) { // an expression matches valid UTF-8 only
      const std::string_view valid = text.substr(0, find_invalid_utf8(text));
      cut_matches(valid, step, out);
      text.remove_prefix(valid.size());
      size_t invalid = 0;
      while (invalid < text.size() && decode_utf8(text, invalid).bytes == 0)
        ++invalid;
      if (invalid > 0) cut(text.substr(0, invalid), step + 1, out);
      text.remove_prefix(invalid);
    }
  }

  // Cuts at each match, as Oniguruma finds them. An empty match cuts, too, unless the previous
  // match ended there.
  void cut_matches(std::string_view text, size_t step, std::vector<Token>& out) const {
    const ReadyStep& with = cuts_[step];
    size_t begin = 0; // start of the text that is not written yet
    const auto write_to = [&](size_t end, bool matched) {
      if (end > begin && (matched || !with.step.only_matches))
        cut(text.substr(begin, end - begin), step + 1, out);
      begin = end;
    };
    std::optional<size_t> last;
    for (size_t at = 0; at <= text.size();) {
      const auto match = with.pattern->find(text, at);
      if (!match) break;
      if (match->end == match->begin && match->end == last) {
        at += at < text.size() ? static_cast<size_t>(decode_utf8(text, at).bytes) : 1;
        continue;
      }
      write_to(match->begin, false);
      write_to(match->end, true);
      last = at = match->end;
    }
    write_to(text.size(), false);
  }

  void cut_digits(std::string_view text, size_t step, std::vector<Token>& out) const {
    const auto character = [&](size_t at) {
      const DecodedChar c = decode_utf8(text, at);
      const bool number = c.bytes > 0 && char_class(c.code) == CharClass::kNumber;
      return std::pair(number, static_cast<size_t>(std::max(c.bytes, 1)));
    };
    for (size_t at = 0; at < text.size();) {
      const auto [number, bytes] = character(at);
      size_t end = at + bytes;
      while (end < text.size() && !(number && cuts_[step].step.individual_digits)) {
        const auto [next, more] = character(end);
        if (next != number) break;
        end += more;
      }
      cut(text.substr(at, end - at), step + 1, out);
      at = end;
    }
  }

  TokenizerJson json_;
  BpeVocabulary vocabulary_;
  std::vector<ReadyStep> cuts_;
  std::string digest_;
  AddedTokens exact_, normalized_;
  std::vector<std::string> added_text_; // indexed by id
};

} // namespace

Result<std::unique_ptr<Tokenizer>> load_huggingface_tokenizer(const std::filesystem::path& file) {
  const std::string doing = "reading " + file.string();
  NSA_TRY_ASSIGN(const std::string content, read_file(file, kMostTokenizerBytes));
  NSA_TRY_ASSIGN(TokenizerJson json, parse_tokenizer_json(content, file.string()));
  std::vector<ReadyStep> cuts;
  for (const CutStep& step : json.steps) {
    ReadyStep cut{step, {}};
    if (step.kind == CutStep::Kind::kPattern || step.kind == CutStep::Kind::kLiteral) {
      auto pattern = SplitPattern::make(step.pattern, step.kind == CutStep::Kind::kLiteral);
      if (!pattern) return fail(std::move(pattern).error().within(doing));
      cut.pattern = std::move(*pattern);
    }
    cuts.push_back(std::move(cut));
  }
  auto vocabulary = BpeVocabulary::build(json.tokens, json.merges, json.whole_tokens);
  if (!vocabulary) return fail(std::move(vocabulary).error().within(doing));
  return std::make_unique<HuggingFaceTokenizer>(std::move(json), std::move(*vocabulary),
                                                std::move(cuts), checksum_hex(content));
}

} // namespace nsa::dataset
