#include "common/dataset/tokenizer_json.h"

#include "common/base/json.h"
#include "common/base/printable.h"
#include "common/dataset/byte_characters.h"

#include <algorithm>
#include <array>
#include <set>

namespace nsa::dataset {

namespace {

using nlohmann::json;

constexpr size_t kMostBytes = size_t{64} << 20;
constexpr uint32_t kMostIds = 65'535; // shards have 16-bit ids

// Documents are separated by the first of these that the file has.
constexpr std::array<std::string_view, 8> kSeparators = {
    "<|endoftext|>",       "<|end_of_text|>", "</s>",       "<eos>",
    "<|end▁of▁sentence|>", "<|eot_id|>",      "<|im_end|>", "[SEP]"};

tl::unexpected<Error> unsupported(const std::string& what) {
  return fail(ErrorCode::kUnsupported, what,
              "byte-level BPE is supported, with the normalizers NFC, NFD, NFKC and NFKD, and the "
              "pre-tokenizers ByteLevel, Split and Digits");
}

// Makes text of the file printable for errors.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 60;
  return printable(text.substr(0, kMost)) + (text.size() > kMost ? "..." : "");
}

std::string type_of(const json& part) {
  return shown(part.value("type", std::string("of no type")));
}

class TokenizerReader {
public:
  explicit TokenizerReader(const json& file) : file_(file) {}

  Result<TokenizerJson> read() {
    NSA_TRY(normalizer(member(file_, "normalizer")));
    NSA_TRY(model());
    NSA_TRY(added_tokens());
    if (const json& pre = member(file_, "pre_tokenizer"); !pre.is_null()) NSA_TRY(step(pre));
    NSA_TRY(bytes_are_characters());
    NSA_TRY(separator());
    return std::move(out_);
  }

private:
  static const json& member(const json& of, const char* name) {
    static const json none;
    const auto found = of.find(name);
    return found == of.end() ? none : *found;
  }

  Status normalizer(const json& given) {
    if (given.is_null()) return {};
    const std::string type = type_of(given);
    if (type == "Sequence") {
      for (const json& one : given.at("normalizers"))
        NSA_TRY(normalizer(one));
      return {};
    }
    const auto form = choice_from<NormalForm>(type);
    if (!form) return unsupported("the normalizer " + type + " is not built");
    if (!can_normalise())
      return fail(ErrorCode::kUnsupported,
                  "the tokenizer brings text into the form " + type +
                      ", and this build has no utf8proc",
                  "install libutf8proc-dev and build again");
    out_.normal_forms.push_back(*form);
    return {};
  }

  Status model() {
    const json& model = file_.at("model");
    if (const std::string type = model.value("type", std::string("BPE")); type != "BPE")
      return unsupported("the model is " + shown(type) + ", not BPE");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const json& given = member(model, key); given.is_string() && given != "")
        return unsupported("the model has " + std::string(key));
    if (model.value("byte_fallback", false)) return unsupported("the model has byte_fallback");
    if (const json& dropout = member(model, "dropout"); dropout.is_number() && dropout != 0.0)
      return unsupported("the model has dropout");
    out_.whole_tokens = model.value("ignore_merges", false);
    const json& vocabulary = model.at("vocab");
    if (!vocabulary.is_object()) return unsupported("the vocabulary is not one of BPE");
    for (const auto& [characters, id] : vocabulary.items()) {
      NSA_TRY(note_id(id.get<uint32_t>()));
      auto bytes = bytes_of_visible(characters);
      if (bytes)
        out_.tokens[id.get<uint32_t>()] = std::move(*bytes);
      else
        strange_.insert(characters); // allowed for an added token
    }
    for (const json& merge : model.at("merges")) {
      std::string left, right;
      if (merge.is_array()) {
        merge.at(0).get_to(left);
        merge.at(1).get_to(right);
      } else {
        const auto text = merge.get<std::string>();
        const size_t space = text.find(' ');
        if (space == text.npos)
          return fail(ErrorCode::kCorrupt, "the merge " + shown(text) + " is no pair");
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
      auto a = bytes_of_visible(left), b = bytes_of_visible(right);
      if (!a || !b)
        return unsupported("the merge of " + shown(left) + " and " + shown(right) +
                           " is not byte-level");
      out_.merges.push_back({std::move(*a), std::move(*b)});
    }
    return {};
  }

  Status note_id(uint32_t id) {
    if (id >= kMostIds)
      return fail(ErrorCode::kUnsupported,
                  "the tokenizer has the id " + std::to_string(id) +
                      ", and shards hold 16-bit ids, of which 65534 is the largest",
                  "use a tokenizer with a smaller vocabulary");
    if (id >= out_.tokens.size()) out_.tokens.resize(id + 1);
    out_.vocabulary_size = std::max(out_.vocabulary_size, static_cast<int32_t>(id) + 1);
    return {};
  }

  Status added_tokens() {
    for (const json& token : member(file_, "added_tokens")) {
      AddedToken added;
      token.at("id").get_to(added.id);
      token.at("content").get_to(added.content);
      added.special = token.value("special", false);
      added.normalized = token.value("normalized", !added.special);
      NSA_TRY(note_id(added.id));
      if (added.content.empty()) return unsupported("an added token is empty");
      for (const char* flag : {"single_word", "lstrip", "rstrip"})
        if (!added.special && token.value(flag, false))
          return unsupported("the added token " + shown(added.content) + " has " + flag);
      strange_.erase(added.content);
      // Text must never become this token, even if the vocabulary has it.
      if (added.special) out_.tokens[added.id].clear();
      out_.added.push_back(std::move(added));
    }
    if (!strange_.empty())
      return unsupported("the token " + shown(*strange_.begin()) + " is not byte-level");
    return {};
  }

  Status step(const json& given) {
    const std::string type = type_of(given);
    if (type == "Sequence") {
      for (const json& one : given.at("pretokenizers"))
        NSA_TRY(step(one));
      return {};
    }
    // A step after ByteLevel would see the characters that represent bytes.
    if (byte_level_) return unsupported("the pre-tokenizer " + type + " stands behind ByteLevel");
    if (type == "ByteLevel") return byte_level(given);
    if (type == "Split") return split(given);
    if (type != "Digits") return unsupported("the pre-tokenizer " + type + " is not built");
    CutStep digits;
    digits.kind = CutStep::Kind::kDigits;
    digits.individual_digits = given.value("individual_digits", false);
    out_.steps.push_back(digits);
    return {};
  }

  Status byte_level(const json& given) {
    if (given.value("add_prefix_space", true))
      return unsupported("the pre-tokenizer has add_prefix_space, and text would not come back as "
                         "it was");
    byte_level_ = true;
    if (given.value("use_regex", true)) out_.steps.push_back({});
    return {};
  }

  Status split(const json& given) {
    const json& pattern = given.at("pattern");
    const std::string behavior = given.at("behavior").get<std::string>();
    const bool invert = given.value("invert", false);
    CutStep cut;
    cut.kind = pattern.contains("Regex") ? CutStep::Kind::kPattern : CutStep::Kind::kLiteral;
    cut.pattern = pattern.at(pattern.contains("Regex") ? "Regex" : "String").get<std::string>();
    if (behavior == "Removed" && invert)
      cut.only_matches = true;
    else if (behavior != "Isolated")
      return unsupported("a Split with behavior " + shown(behavior) + " is not built");
    out_.steps.push_back(std::move(cut));
    return {};
  }

  // Without ByteLevel, a vocabulary that looks byte-level is one of characters.
  Status bytes_are_characters() const {
    if (byte_level_) return {};
    return unsupported("the tokenizer is not byte-level");
  }

  Status separator() {
    std::vector<const AddedToken*> specials;
    for (const AddedToken& token : out_.added)
      if (token.special) specials.push_back(&token);
    const AddedToken* chosen = specials.size() == 1 ? specials[0] : nullptr;
    for (const std::string_view name : kSeparators)
      for (const AddedToken* token : specials)
        if (chosen == nullptr && token->content == name) chosen = token;
    if (chosen == nullptr)
      return fail(ErrorCode::kUnsupported,
                  "the tokenizer has " + std::to_string(specials.size()) +
                      " special tokens, and none is known to separate documents",
                  "add a special token <|endoftext|> to it");
    out_.separator = chosen->id;
    out_.separator_text = chosen->content;
    return {};
  }

  const json& file_;
  TokenizerJson out_;
  std::set<std::string> strange_; // tokens of the vocabulary that represent no bytes
  bool byte_level_ = false;
};

} // namespace

Result<TokenizerJson> parse_tokenizer_json(std::string_view text, std::string_view subject) {
  NSA_TRY_ASSIGN(const json file, parse_json(text, subject, {.bytes = kMostBytes}));
  try {
    auto read = TokenizerReader(file).read();
    if (!read) return fail(std::move(read).error().within(std::string(subject)));
    return read;
  } catch (const json::exception& error) {
    return fail(ErrorCode::kCorrupt, std::string(subject) + ": " + reason_of(error),
                "name the tokenizer.json of a Hugging Face model");
  }
}

} // namespace nsa::dataset
