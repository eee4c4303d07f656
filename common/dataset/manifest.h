// dataset.json: what a data set is. A plain value with a JSON form; no I/O beyond the two functions
// at the end. A folder is a data set if and only if it holds a manifest that parses.
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
// Room for some hundred thousand source files; more is not a manifest.
inline constexpr size_t kMaxManifestBytes = size_t{64} << 20;

enum class Split : uint8_t { kTrain, kHeldout };
constexpr auto choice_names(Split) {
  return names_of("train", "heldout");
}

// What the tokens were made of. `path` is as the person gave it, or relative to the folder given.
struct SourceRecord {
  std::string path;
  uint64_t bytes = 0;   // of the file, compressed if it is
  std::string checksum; // XXH3-128 of the file
  int64_t documents = 0;
};

struct ShardRecord {
  std::string file; // name inside the data set's folder
  Split split = Split::kTrain;
  ShardFormat format = ShardFormat::kLlmC;
  int64_t tokens = 0;
  uint64_t bytes = 0;
  std::string checksum; // XXH3-128 of the file
};

// Plug-in (maximum-likelihood) estimates, in nats a token, separators included:
//   unigram  H(X_t)           = - sum_b p(b) ln p(b)
//   bigram   H(X_t | X_{t-1}) = - sum_ab p(a, b) ln p(b | a)
// A model whose loss lies below the bigram figure uses more than one token of context. With a large
// vocabulary and little text the bigram figure is far too low (most pairs occur once); `tokens`
// says how much text it rests on.
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

// How the documents were cut and split; kept so that "is this already prepared?" can be answered.
struct PreparationRecord {
  std::string documents; // "file" or "paragraph"; "shards" when shards were adopted
  int64_t min_document_bytes = 0;
  std::string invalid_utf8; // "error", "replace" or "keep"
  std::string jsonl_key;
  double heldout_fraction = 0;
  uint64_t seed = 0;
  int64_t shard_tokens = 0;

  bool operator==(const PreparationRecord&) const = default;
};

struct Manifest {
  std::string digest; // dataset_digest() of the rest
  std::string created_at;
  TokenizerRecord tokenizer;
  PreparationRecord preparation;
  std::vector<SourceRecord> sources;
  std::vector<ShardRecord> shards; // in reading order
  int64_t documents = 0;
  int64_t heldout_documents = 0;
  int64_t replaced_characters = 0; // invalid UTF-8 that became U+FFFD
  Entropy text;                    // of both splits together
  Entropy heldout;                 // of the held-out split alone

  int64_t tokens(Split split) const;
};

// Identity of the tokens and their order: tokenizer, and each shard's split, count and checksum.
// Names, times and sources do not enter, so that a copy elsewhere is the same data set.
std::string dataset_digest(const Manifest& manifest);

nlohmann::ordered_json to_tree(const Manifest& manifest);
std::string to_json(const Manifest& manifest); // ends with a newline
// kCorrupt names the key that is missing or wrong, or says that the digest does not fit the rest.
// `subject` is what errors call the text.
Result<Manifest> parse_manifest(std::string_view json, std::string_view subject = kManifestFile);

Result<Manifest> read_manifest(const std::filesystem::path& folder,
                               const FileOpener& open = open_regular_file);
Status write_manifest(const std::filesystem::path& folder, const Manifest& manifest);

} // namespace nsa::dataset
