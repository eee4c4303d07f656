#include "fetch/split_writer.h"

#include <cstdio>

namespace nsa::fetch {

using dataset::ShardWriter;

std::string SplitWriter::next_name() const {
  char name[40];
  std::snprintf(name, sizeof name, "%s_%06zu.bin", text_of(split_).c_str(), shards_.size());
  return name;
}

Status SplitWriter::resume(SplitState state) {
  shards_ = std::move(state.shards);
  if (state.open_tokens == 0) return {}; // a file of that name, if there is one, is overwritten
  NSA_TRY_ASSIGN(open_, ShardWriter::resume(folder_ / next_name(), state.open_tokens));
  return {};
}

Status SplitWriter::append(std::span<const dataset::Token> tokens) {
  while (!tokens.empty()) {
    if (!open_) {
      NSA_TRY_ASSIGN(open_, ShardWriter::create(folder_ / next_name()));
      open_->keep();
    }
    const auto room = static_cast<size_t>(shard_tokens_ - open_->tokens());
    const size_t count = std::min(room, tokens.size());
    NSA_TRY(open_->append(tokens.first(count)));
    tokens = tokens.subspan(count);
    if (open_->tokens() == shard_tokens_) NSA_TRY(finish());
  }
  return {};
}

Result<SplitState> SplitWriter::sync() {
  if (open_) NSA_TRY(open_->sync());
  return SplitState{shards_, open_ ? open_->tokens() : 0};
}

Status SplitWriter::finish() {
  if (!open_) return {};
  const std::string name = next_name();
  NSA_TRY_ASSIGN(dataset::WrittenShard written, open_->finish());
  shards_.push_back({name, split_, dataset::ShardFormat::kLlmC, written.tokens, written.bytes,
                     std::move(written.checksum)});
  open_.reset();
  return {};
}

} // namespace nsa::fetch
