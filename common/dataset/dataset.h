// A prepared data set, opened for reading: its manifest and its mapped shards.
//
// open() compares every file with the manifest and rejects any difference. Afterwards everything is
// const: any thread may read, and a call blocks for page faults only.
#pragma once

#include "common/base/result.h"
#include "common/dataset/manifest.h"
#include "common/dataset/shard.h"
#include "common/dataset/tokenizer.h"

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nsa::dataset {

enum class Check {
  kSizes,     // presence, size and header of every shard: microseconds
  kChecksums, // additionally every byte: about 10 GB/s from the page cache
};

// All tokens of a split, in shard order, addressed as one sequence.
class TokenSequence {
public:
  int64_t size() const { return size_; }

  // Copies out.size() tokens from `position` on, converted to T. The range must be inside [0,
  // size()).
  template <class T> void copy(int64_t position, std::span<T> out) const;

  // Returns the longest contiguous piece from `position` on; for full scans.
  std::span<const Token> piece(int64_t position) const;

private:
  friend class Dataset;
  std::vector<std::span<const Token>> shards_;
  std::vector<int64_t> starts_; // position of each shard's first token
  int64_t size_ = 0;
};

class Dataset {
public:
  static Result<std::shared_ptr<const Dataset>> open(const std::filesystem::path& folder,
                                                     Check check);

  // Opens only these shards. Shards that `before` has already opened are neither opened nor checked
  // again. Error: kConflict if one of them has changed. See generations.h.
  static Result<std::shared_ptr<const Dataset>> open_part(const std::filesystem::path& folder,
                                                          Manifest shards, bool complete,
                                                          Check check, const Dataset* before);

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& digest() const { return manifest_.digest; }
  bool complete() const { return complete_; } // false: more shards will come
  const TokenSequence& tokens(Split split) const {
    return split == Split::kTrain ? train_ : heldout_;
  }

  // Calls ShardReader::let_go() of every shard. Callable from any thread.
  void let_go() const;

  // Loads the tokenizer that made the data set from the folder's copy. If shards were adopted
  // without a copy, it uses `ranks_file`.
  Result<std::unique_ptr<Tokenizer>>
  load_tokenizer(const std::filesystem::path& ranks_file = {}) const;

private:
  void add(std::shared_ptr<const ShardReader> reader, Split split);

  std::filesystem::path folder_;
  Manifest manifest_;
  bool complete_ = true;
  std::vector<std::shared_ptr<const ShardReader>> readers_;
  TokenSequence train_, heldout_;
};

// A defect of a data set, with the file's name.
struct Finding {
  std::string file;
  std::string what;
};

// Checks everything and continues after a defect: sizes, headers, checksums, ids below the
// vocabulary size. An empty result means that the data set is intact. Fails only if the manifest
// cannot be read.
Result<std::vector<Finding>> verify(const std::filesystem::path& folder);

template <class T> void TokenSequence::copy(int64_t position, std::span<T> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const std::span<const Token> from = piece(position + static_cast<int64_t>(done));
    const size_t count = std::min(from.size(), out.size() - done);
    for (size_t i = 0; i < count; ++i)
      out[done + i] = static_cast<T>(from[i]);
    done += count;
  }
}

} // namespace nsa::dataset
