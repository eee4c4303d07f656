// dataset.json describes a data set. This is a plain value with a JSON form; only the two functions
// at the end do I/O. A folder is a data set if and only if it has a manifest that parses.
#pragma once

#include "common/base/file.h"
#include "common/base/result.h"
#include "common/dataset/shard.h"

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace nsa::dataset {

inline constexpr std::string_view kManifestFile = "dataset.json";
inline constexpr int kManifestVersion = 1;
// Enough for some hundred thousand source files; a larger file is no manifest.
inline constexpr size_t kMaxManifestBytes = size_t{64} << 20;

enum class Split : uint8_t { kTrain, kHeldout };
constexpr auto choice_names(Split) {
  return names_of("train", "heldout");
}

// A source of the tokens. `path` is as the user gave it, or below the given folder.
struct SourceRecord {
  std::string path;
  uint64_t bytes = 0;   // size of the file, which may be compressed
  std::string checksum; // XXH3-128 of the file
  int64_t documents = 0;
};

struct ShardRecord {
  std::string file; // name in the data set's folder
  Split split = Split::kTrain;
  ShardFormat format = ShardFormat::kLlmC;
  int64_t tokens = 0;
  uint64_t bytes = 0;
  std::string checksum; // XXH3-128 of the file
};

// Plug-in (maximum-likelihood) estimates, in nats a token, separators included:
//   unigram  H(X_t)           = - sum_b p(b) ln p(b)
//   bigram   H(X_t | X_{t-1}) = - sum_ab p(a, b) ln p(b | a)
// A model whose loss is below the bigram entropy uses more than one token of context. With a large
// vocabulary and little text the bigram entropy is far too low, because most pairs occur once.
// `tokens` is the number of tokens that it is estimated from.
struct Entropy {
  int64_t tokens = 0;
  double unigram_entropy_nats = 0;
  double bigram_entropy_nats = 0;
};

struct TokenizerRecord {
  std::string name;
  std::string digest;
  int32_t vocabulary_size = 0;
  Token separator = 0;
};

// How documents were cut and split. It is stored to detect that the same data set already exists.
struct PreparationRecord {
  std::string documents; // "file" or "paragraph"; "shards" if shards were adopted
  int64_t min_document_bytes = 0;
  std::string invalid_utf8; // "error", "replace" or "keep"
  std::string jsonl_key;
  double heldout_fraction = 0;
  uint64_t seed = 0;
  int64_t shard_tokens = 0;

  bool operator==(const PreparationRecord&) const = default;
};

struct Manifest {
  std::string digest; // dataset_digest() of the other members
  std::string created_at;
  TokenizerRecord tokenizer;
  PreparationRecord preparation;
  std::vector<SourceRecord> sources;
  std::vector<ShardRecord> shards; // in reading order
  int64_t documents = 0;
  int64_t heldout_documents = 0;
  int64_t replaced_characters = 0; // number of invalid UTF-8 sequences that became U+FFFD
  Entropy text;                    // both splits together
  Entropy heldout;                 // only the held-out split

  int64_t tokens(Split split) const;
};

// Identifies the tokens and their order: tokenizer, and each shard's split, count and checksum.
// Names, times and sources do not count, so a copy elsewhere is the same data set.
std::string dataset_digest(const Manifest& manifest);

nlohmann::ordered_json to_tree(const Manifest& manifest);
std::string to_json(const Manifest& manifest); // ends with a newline
// Error: kCorrupt names the key that is missing or wrong, or says that the digest does not match.
// `subject` names the text in errors.
Result<Manifest> parse_manifest(std::string_view json, std::string_view subject = kManifestFile);

Result<Manifest> read_manifest(const std::filesystem::path& folder,
                               const FileOpener& open = open_regular_file);
Status write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

} // namespace nsa::dataset
