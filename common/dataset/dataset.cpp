#include "common/dataset/dataset.h"

#include <algorithm>

namespace nsa::dataset {
namespace {

// Opens a shard and compares its size and token count with the manifest.
Result<ShardReader> open_recorded(const std::filesystem::path& folder, const ShardRecord& record) {
  const std::filesystem::path path = folder / record.file;
  NSA_TRY_ASSIGN(ShardReader reader, ShardReader::open(path, record.format));
  if (reader.file_bytes() != record.bytes ||
      static_cast<int64_t>(reader.tokens().size()) != record.tokens)
    return fail(ErrorCode::kCorrupt,
                "shard " + path.string() + " has " + std::to_string(reader.file_bytes()) +
                    " bytes, the manifest says " + std::to_string(record.bytes));
  return reader;
}

Status check_checksum(const std::filesystem::path& folder, const ShardRecord& record,
                      const ShardReader& reader) {
  if (const std::string found = reader.checksum(); found != record.checksum)
    return fail(ErrorCode::kCorrupt, "shard " + (folder / record.file).string() + " has checksum " +
                                         found + ", the manifest says " + record.checksum +
                                         ": its content changed");
  return {};
}

Error with_advice(Error error) {
  error.next = "restore the file from where it was copied from, or prepare the data set again; "
               "'nsactl data verify' lists all that is wrong";
  return error;
}

} // namespace

std::span<const Token> TokenSequence::piece(int64_t position) const {
  const auto after = std::upper_bound(starts_.begin(), starts_.end(), position);
  const auto shard = static_cast<size_t>(after - starts_.begin()) - 1;
  return shards_[shard].subspan(static_cast<size_t>(position - starts_[shard]));
}

Result<std::shared_ptr<const Dataset>> Dataset::open(const std::filesystem::path& folder,
                                                     Check check) {
  NSA_TRY_ASSIGN(Manifest manifest, read_manifest(folder));
  return open_part(folder, std::move(manifest), /*complete=*/true, check, nullptr);
}

Result<std::shared_ptr<const Dataset>> Dataset::open_part(const std::filesystem::path& folder,
                                                          Manifest shards, bool complete,
                                                          Check check, const Dataset* before) {
  auto dataset = std::make_shared<Dataset>();
  dataset->folder_ = folder;
  dataset->manifest_ = std::move(shards);
  dataset->complete_ = complete;
  const size_t known = before ? before->readers_.size() : 0;
  for (size_t i = 0; i < dataset->manifest_.shards.size(); ++i) {
    const ShardRecord& record = dataset->manifest_.shards[i];
    if (i < known) {
      if (before->manifest_.shards[i].checksum != record.checksum)
        return fail(ErrorCode::kConflict,
                    "shard " + (folder / record.file).string() + " is another one than before",
                    "it was fetched again with other text: begin a new run");
      dataset->add(before->readers_[i], record.split);
      continue;
    }
    auto reader = open_recorded(folder, record);
    if (!reader) return fail(with_advice(std::move(reader).error()));
    if (check == Check::kChecksums) {
      if (auto status = check_checksum(folder, record, *reader); !status)
        return fail(with_advice(std::move(status).error()));
    }
    dataset->add(std::make_shared<const ShardReader>(std::move(*reader)), record.split);
  }
  return dataset;
}

void Dataset::add(std::shared_ptr<const ShardReader> reader, Split split) {
  TokenSequence& sequence = split == Split::kTrain ? train_ : heldout_;
  if (!reader->tokens().empty()) { // piece() searches the last shard that begins at or before a
                                   // position
    sequence.shards_.push_back(reader->tokens());
    sequence.starts_.push_back(sequence.size_);
    sequence.size_ += static_cast<int64_t>(reader->tokens().size());
  }
  readers_.push_back(std::move(reader));
}

void Dataset::let_go() const {
  for (const auto& reader : readers_)
    reader->let_go();
}

Result<std::unique_ptr<Tokenizer>>
Dataset::load_tokenizer(const std::filesystem::path& ranks_file) const {
  NSA_TRY_ASSIGN(const TokenizerKind kind, parse_tokenizer(manifest_.tokenizer.name));
  std::filesystem::path ranks = folder_ / tokenizer_file_name(kind);
  if (!std::filesystem::exists(ranks)) ranks = ranks_file;
  NSA_TRY_ASSIGN(auto tokenizer, dataset::load_tokenizer(kind, ranks));
  if (tokenizer->digest() != manifest_.tokenizer.digest)
    return fail(ErrorCode::kCorrupt, "the data set was made by another '" +
                                         manifest_.tokenizer.name + "' tokenizer (digest " +
                                         manifest_.tokenizer.digest + ", here " +
                                         tokenizer->digest() + ")");
  return tokenizer;
}

Result<std::vector<Finding>> verify(const std::filesystem::path& folder) {
  NSA_TRY_ASSIGN(const Manifest manifest, read_manifest(folder));
  std::vector<Finding> findings;
  for (const ShardRecord& record : manifest.shards) {
    const auto reader = open_recorded(folder, record);
    if (!reader) {
      findings.push_back({record.file, reader.error().what});
      continue;
    }
    if (const auto status = check_checksum(folder, record, *reader); !status) {
      findings.push_back({record.file, status.error().what});
      continue;
    }
    const auto tokens = reader->tokens();
    const auto bad = std::find_if(tokens.begin(), tokens.end(), [&](Token token) {
      return token >= manifest.tokenizer.vocabulary_size;
    });
    if (bad != tokens.end())
      findings.push_back({record.file, "token " + std::to_string(bad - tokens.begin()) + " is " +
                                           std::to_string(*bad) + ", the vocabulary has " +
                                           std::to_string(manifest.tokenizer.vocabulary_size)});
  }
  return findings;
}

} // namespace nsa::dataset
