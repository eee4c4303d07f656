// Writes tokens of one split into shards, starting from any recorded state. One thread.
#pragma once

#include "common/dataset/shard.h"
#include "fetch/progress_file.h"

#include <filesystem>
#include <optional>
#include <span>

namespace nsa::fetch {

class SplitWriter {
public:
  SplitWriter(std::filesystem::path folder, dataset::Split split, int64_t shard_tokens)
      : folder_(std::move(folder)), split_(split), shard_tokens_(shard_tokens) {}

  // Cuts off what was written after the state, and continues there.
  Status resume(SplitState state);
  Status append(std::span<const dataset::Token> tokens);
  // Flushes everything that was appended to disk, and returns the state to record.
  Result<SplitState> sync();
  size_t complete() const { return shards_.size(); }
  // Completes the last shard, which may be short.
  Status finish();

private:
  std::string next_name() const;

  std::filesystem::path folder_;
  dataset::Split split_;
  int64_t shard_tokens_;
  std::vector<dataset::ShardRecord> shards_;
  std::optional<dataset::ShardWriter> open_;
};

} // namespace nsa::fetch
