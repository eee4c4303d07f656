// Makes a data set of existing shards (prepare.h, adopt).
#include "common/base/clock.h"
#include "common/dataset/dataset.h"
#include "common/dataset/entropy.h"
#include "common/dataset/prepare.h"

#include <algorithm>

namespace nsa::dataset {
namespace fs = std::filesystem;
namespace {

Result<std::vector<fs::path>> shard_files(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error); !error && at != fs::directory_iterator();
       at.increment(error))
    if (at->path().extension() == ".bin") files.push_back(at->path());
  if (error)
    return fail(ErrorCode::kSystem, "cannot read " + folder.string() + ": " + error.message(),
                "name a folder with .bin shards of llm.c or nanoGPT");
  if (files.empty())
    return fail(ErrorCode::kNotFound, "there is no .bin file in " + folder.string(),
                "text is made into shards by: nsactl data prepare --out FOLDER TEXT...");
  std::sort(files.begin(), files.end());
  return files;
}

Split split_by_name(const std::string& name) {
  const bool heldout = name.find("val") != name.npos || name.find("heldout") != name.npos;
  return heldout ? Split::kHeldout : Split::kTrain;
}

} // namespace

Result<Manifest> adopt(const AdoptOptions& options) {
  std::error_code error;
  if (fs::exists(options.folder / kManifestFile, error))
    return fail(ErrorCode::kConflict, options.folder.string() + " is a data set already",
                "look at it: nsactl data info " + options.folder.string());
  NSA_TRY_ASSIGN(const auto tokenizer, load_tokenizer(options.tokenizer, options.ranks_file));
  NSA_TRY_ASSIGN(const std::vector<fs::path> files, shard_files(options.folder));
  Manifest manifest;
  manifest.tokenizer = {text_of(tokenizer->kind()), tokenizer->digest(),
                        tokenizer->vocabulary_size(), tokenizer->separator()};
  manifest.preparation.documents = "shards";
  manifest.created_at = format_rfc3339(WallTime::now());
  EntropyMeter whole(tokenizer->vocabulary_size()), heldout(tokenizer->vocabulary_size());
  for (const fs::path& file : files) {
    auto opened = ShardReader::open(file, options.format);
    if (!opened) {
      opened.error().next = options.format == ShardFormat::kLlmC
                                ? "for files of nanoGPT: --format raw_u16"
                                : "for files of llm.c or modded-nanogpt: --format llmc";
      return fail(std::move(opened.error()));
    }
    const ShardReader shard = std::move(*opened);
    const auto tokens = shard.tokens();
    ShardRecord record{file.filename().string(), split_by_name(file.filename().string()),
                       options.format,           static_cast<int64_t>(tokens.size()),
                       shard.file_bytes(),       shard.checksum()};
    const auto largest = std::max_element(tokens.begin(), tokens.end());
    if (largest != tokens.end() && *largest >= tokenizer->vocabulary_size())
      return fail(ErrorCode::kInvalidArgument,
                  file.string() + " holds token " + std::to_string(*largest) + ", '" +
                      text_of(options.tokenizer) + "' has " +
                      std::to_string(tokenizer->vocabulary_size()) + " ids",
                  "name the tokenizer that made the shards");
    const int64_t documents = std::count(tokens.begin(), tokens.end(), tokenizer->separator());
    manifest.documents += documents;
    manifest.heldout_documents += record.split == Split::kHeldout ? documents : 0;
    whole.add(tokens);
    if (record.split == Split::kHeldout) heldout.add(tokens);
    manifest.shards.push_back(std::move(record));
  }
  manifest.text = whole.measure();
  manifest.heldout = heldout.measure();
  manifest.digest = dataset_digest(manifest);
  if (is_named_by_file(options.tokenizer)) // no other place has a copy of it
    NSA_TRY(copy_tokenizer(options.tokenizer, options.ranks_file, options.folder));
  NSA_TRY(write_manifest(options.folder, manifest));
  return manifest;
}

} // namespace nsa::dataset
