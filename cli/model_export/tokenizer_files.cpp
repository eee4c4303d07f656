#include "cli/model_export/tokenizer_files.h"

#include "common/base/file.h"
#include "common/dataset/bpe.h"
#include "common/dataset/byte_characters.h"
#include "common/dataset/tokenizer.h"

#include <unordered_map>

namespace nsa::model_export {

namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxRanksBytes = size_t{16} << 20;

using dataset::visible;
using Ranks = std::unordered_map<std::string_view, size_t>;

// Returns the two tokens whose merge is `token`: its parts after all merges of lower rank.
Result<std::pair<std::string_view, std::string_view>> parts_of(std::string_view token, size_t rank,
                                                               const Ranks& ranks) {
  std::vector<std::string_view> parts;
  for (size_t i = 0; i < token.size(); ++i)
    parts.push_back(token.substr(i, 1));
  while (parts.size() > 2) {
    size_t best = rank, at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const std::string_view joined(parts[i].data(), parts[i].size() + parts[i + 1].size());
      const auto found = ranks.find(joined);
      if (found != ranks.end() && found->second < best) {
        best = found->second;
        at = i;
      }
    }
    if (best == rank) break;
    parts[at] = {parts[at].data(), parts[at].size() + parts[at + 1].size()};
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  if (parts.size() != 2)
    return fail(ErrorCode::kCorrupt,
                "rank " + std::to_string(rank) + " is the merge of no two tokens before it");
  return std::pair{parts[0], parts[1]};
}

struct Vocabulary {
  ordered_json ids = ordered_json::object();
  ordered_json merges = ordered_json::array();
  dataset::Token separator = 0;
};

Vocabulary of_bytes() {
  Vocabulary vocabulary;
  const auto tokenizer = dataset::make_byte_tokenizer();
  for (unsigned byte = 0; byte < 256; ++byte)
    vocabulary.ids[visible(std::string(1, static_cast<char>(byte)))] = byte;
  vocabulary.separator = tokenizer->separator();
  return vocabulary;
}

Result<Vocabulary> of_gpt2(const std::filesystem::path& ranks_file) {
  // Accepts only the pinned file.
  NSA_TRY_ASSIGN(const auto tokenizer, dataset::load_gpt2_tokenizer(ranks_file));
  NSA_TRY_ASSIGN(const std::string content, read_file(ranks_file, kMaxRanksBytes));
  NSA_TRY_ASSIGN(const auto tokens, dataset::parse_ranks(content));
  Ranks ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank)
    ranks.emplace(tokens[rank], rank);
  Vocabulary vocabulary;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    vocabulary.ids[visible(tokens[rank])] = rank;
    if (tokens[rank].size() < 2) continue;
    NSA_TRY_ASSIGN(const auto pair, parts_of(tokens[rank], rank, ranks));
    vocabulary.merges.push_back(visible(pair.first) + " " + visible(pair.second));
  }
  vocabulary.separator = tokenizer->separator();
  return vocabulary;
}

// Returns the file unchanged, after checking that it is a tokenizer.
Result<TokenizerFile> of_file(dataset::TokenizerKind kind, const std::filesystem::path& file) {
  NSA_TRY_ASSIGN(const auto tokenizer, dataset::load_tokenizer(kind, file));
  NSA_TRY_ASSIGN(std::string content, read_file(file));
  return TokenizerFile{std::move(content), tokenizer->separator(), tokenizer->separator_text()};
}

ordered_json byte_level(bool cut_words) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", cut_words}};
}

} // namespace

Result<TokenizerFile> make_tokenizer_file(dataset::TokenizerKind kind,
                                          const std::filesystem::path& ranks_file) {
  if (dataset::is_named_by_file(kind)) return of_file(kind, ranks_file);
  Vocabulary vocabulary;
  const bool gpt2 = kind == dataset::TokenizerKind::kGpt2;
  if (gpt2) {
    NSA_TRY_ASSIGN(vocabulary, of_gpt2(ranks_file));
  } else {
    vocabulary = of_bytes();
  }
  vocabulary.ids[kSeparatorText] = vocabulary.separator;
  ordered_json json;
  json["version"] = "1.0";
  json["truncation"] = nullptr;
  json["padding"] = nullptr;
  json["added_tokens"] = ordered_json::array({{{"id", vocabulary.separator},
                                               {"content", kSeparatorText},
                                               {"single_word", false},
                                               {"lstrip", false},
                                               {"rstrip", false},
                                               {"normalized", false},
                                               {"special", true}}});
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = byte_level(gpt2);
  json["post_processor"] = nullptr;
  json["decoder"] = byte_level(gpt2);
  json["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", std::move(vocabulary.ids)},
                   {"merges", std::move(vocabulary.merges)}};
  return TokenizerFile{json.dump(1) + "\n", vocabulary.separator, kSeparatorText};
}

ordered_json tokenizer_config(int64_t longest_text, const std::string& separator_text) {
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"bos_token", separator_text},
          {"eos_token", separator_text},
          {"pad_token", separator_text},
          {"add_prefix_space", false},
          {"clean_up_tokenization_spaces", false},
          {"model_max_length", longest_text}};
}

} // namespace nsa::model_export
