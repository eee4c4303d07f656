// Tokens of one split into shards, from any recorded state on. One thread.
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

  // Cuts what was written behind the state, and goes on there.
  Status resume(SplitState state);
  Status append(std::span<const dataset::Token> tokens);
  // Everything appended is on disk; returns what to record.
  Result<SplitState> sync();
  size_t complete() const { return shards_.size(); }
  // The last shard, which may be short.
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
