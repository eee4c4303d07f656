#include "common/dataset/manifest.h"

#include "common/base/checksum.h"
#include "common/base/file.h"
#include "common/base/json.h"

namespace nsa::dataset {
namespace {

using nlohmann::json;

Split split_from(const std::string& text) {
  if (const auto split = choice_from<Split>(text)) return *split;
  throw std::invalid_argument("split is '" + text + "', expected 'train' or 'heldout'");
}

ShardRecord shard_from(const json& value) {
  ShardRecord shard;
  shard.file = value.at("file").get<std::string>();
  if (shard.file.empty() || shard.file.find('/') != std::string::npos)
    throw std::invalid_argument("shard name '" + shard.file + "' is not a plain file name");
  shard.split = split_from(value.at("split").get<std::string>());
  auto format = parse_shard_format(value.at("format").get<std::string>());
  if (!format) throw std::invalid_argument(format.error().what);
  shard.format = *format;
  shard.tokens = value.at("tokens").get<int64_t>();
  shard.bytes = value.at("bytes").get<uint64_t>();
  shard.checksum = value.at("checksum").get<std::string>();
  return shard;
}

Manifest manifest_from(const json& value) {
  if (const int version = value.at("version").get<int>(); version != kManifestVersion)
    throw std::invalid_argument("version is " + std::to_string(version) + ", this program reads " +
                                std::to_string(kManifestVersion));
  Manifest manifest;
  manifest.digest = value.at("digest").get<std::string>();
  manifest.created_at = value.at("created_at").get<std::string>();
  const json& tokenizer = value.at("tokenizer");
  manifest.tokenizer = {
      tokenizer.at("name").get<std::string>(), tokenizer.at("digest").get<std::string>(),
      tokenizer.at("vocabulary_size").get<int32_t>(), tokenizer.at("separator").get<Token>()};
  const json& preparation = value.at("preparation");
  manifest.preparation = {
      preparation.at("documents").get<std::string>(),
      preparation.at("min_document_bytes").get<int64_t>(),
      preparation.at("invalid_utf8").get<std::string>(),
      preparation.at("jsonl_key").get<std::string>(),
      preparation.at("heldout_fraction").get<double>(),
      preparation.at("seed").get<uint64_t>(),
      preparation.at("shard_tokens").get<int64_t>(),
  };
  for (const json& source : value.at("sources"))
    manifest.sources.push_back(
        {source.at("path").get<std::string>(), source.at("bytes").get<uint64_t>(),
         source.at("checksum").get<std::string>(), source.at("documents").get<int64_t>()});
  for (const json& shard : value.at("shards"))
    manifest.shards.push_back(shard_from(shard));
  manifest.documents = value.at("documents").get<int64_t>();
  manifest.heldout_documents = value.at("heldout_documents").get<int64_t>();
  manifest.replaced_characters = value.at("replaced_characters").get<int64_t>();
  manifest.text = {value.at("entropy_tokens").get<int64_t>(),
                   value.at("unigram_entropy_nats").get<double>(),
                   value.at("bigram_entropy_nats").get<double>()};
  manifest.heldout = {value.at("heldout_entropy_tokens").get<int64_t>(),
                      value.at("heldout_unigram_entropy_nats").get<double>(),
                      value.at("heldout_bigram_entropy_nats").get<double>()};
  return manifest;
}

} // namespace

int64_t Manifest::tokens(Split split) const {
  int64_t sum = 0;
  for (const ShardRecord& shard : shards)
    sum += shard.split == split ? shard.tokens : 0;
  return sum;
}

std::string dataset_digest(const Manifest& manifest) {
  json identity = {{"tokenizer", manifest.tokenizer.digest},
                   {"vocabulary_size", manifest.tokenizer.vocabulary_size},
                   {"separator", manifest.tokenizer.separator},
                   {"shards", json::array()}};
  for (const ShardRecord& shard : manifest.shards)
    identity["shards"].push_back(
        {name_of(shard.split), name_of(shard.format), shard.tokens, shard.checksum});
  return checksum_hex(identity.dump());
}

nlohmann::ordered_json to_tree(const Manifest& manifest) {
  // Keys are ordered for human readers, from general facts to the list of shards.
  nlohmann::ordered_json value = {
      {"version", kManifestVersion},
      {"digest", manifest.digest},
      {"created_at", manifest.created_at},
      {"tokenizer",
       {{"name", manifest.tokenizer.name},
        {"digest", manifest.tokenizer.digest},
        {"vocabulary_size", manifest.tokenizer.vocabulary_size},
        {"padded_vocabulary_size", padded_vocabulary_size(manifest.tokenizer.vocabulary_size)},
        {"separator", manifest.tokenizer.separator}}},
      {"documents", manifest.documents},
      {"heldout_documents", manifest.heldout_documents},
      {"train_tokens", manifest.tokens(Split::kTrain)},
      {"heldout_tokens", manifest.tokens(Split::kHeldout)},
      {"replaced_characters", manifest.replaced_characters},
      {"entropy_tokens", manifest.text.tokens},
      {"unigram_entropy_nats", manifest.text.unigram_entropy_nats},
      {"bigram_entropy_nats", manifest.text.bigram_entropy_nats},
      {"heldout_entropy_tokens", manifest.heldout.tokens},
      {"heldout_unigram_entropy_nats", manifest.heldout.unigram_entropy_nats},
      {"heldout_bigram_entropy_nats", manifest.heldout.bigram_entropy_nats},
      {"preparation",
       {{"documents", manifest.preparation.documents},
        {"min_document_bytes", manifest.preparation.min_document_bytes},
        {"invalid_utf8", manifest.preparation.invalid_utf8},
        {"jsonl_key", manifest.preparation.jsonl_key},
        {"heldout_fraction", manifest.preparation.heldout_fraction},
        {"seed", manifest.preparation.seed},
        {"shard_tokens", manifest.preparation.shard_tokens}}},
  };
  value["sources"] = json::array();
  for (const SourceRecord& source : manifest.sources)
    value["sources"].push_back({{"path", source.path},
                                {"bytes", source.bytes},
                                {"checksum", source.checksum},
                                {"documents", source.documents}});
  value["shards"] = json::array();
  for (const ShardRecord& shard : manifest.shards)
    value["shards"].push_back({{"file", shard.file},
                               {"split", shard.split},
                               {"format", shard.format},
                               {"tokens", shard.tokens},
                               {"bytes", shard.bytes},
                               {"checksum", shard.checksum}});
  return value;
}

std::string to_json(const Manifest& manifest) {
  return to_tree(manifest).dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view subject) {
  const char* const next = "prepare the data set again";
  const auto tree = parse_json(text, subject, {.bytes = kMaxManifestBytes});
  if (!tree) return fail(ErrorCode::kCorrupt, tree.error().what, next);
  Manifest manifest;
  try {
    manifest = manifest_from(*tree);
  } catch (const json::exception& error) {
    return fail(ErrorCode::kCorrupt, std::string(subject) + ": " + reason_of(error), next);
  } catch (const std::exception& error) {
    return fail(ErrorCode::kCorrupt, std::string(subject) + ": " + error.what(), next);
  }
  if (const std::string digest = dataset_digest(manifest); digest != manifest.digest)
    return fail(ErrorCode::kCorrupt,
                std::string(subject) + ": the digest " + manifest.digest +
                    " does not fit the list of shards (" + digest +
                    "): the file was changed by hand or is damaged",
                next);
  return manifest;
}

Result<Manifest> read_manifest(const std::filesystem::path& folder, const FileOpener& open) {
  const std::filesystem::path path = folder / kManifestFile;
  auto content = read_file(path, kMaxManifestBytes, open);
  if (!content) {
    Error error = std::move(content).error();
    if (error.code == ErrorCode::kNotFound) {
      error.what = folder.string() + " is no data set: there is no " + std::string(kManifestFile);
      error.next = "make one with 'nsactl data prepare'";
    }
    return fail(std::move(error));
  }
  return parse_manifest(*content, path.string());
}

Status write_manifest(const std::filesystem::path& folder, const Manifest& manifest) {
  const std::string text = to_json(manifest);
  if (text.size() > kMaxManifestBytes)
    return fail(ErrorCode::kExhausted,
                "the manifest of " + std::to_string(manifest.sources.size()) +
                    " source files is larger than " + std::to_string(kMaxManifestBytes) + " bytes",
                "join the sources into fewer files");
  return write_file_atomic(folder / kManifestFile, text);
}

} // namespace nsa::dataset
