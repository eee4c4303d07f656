// A file of tokens in llm.c's format: 256 little-endian int32 {20240520, 1, tokens, 0 ...}, then
// that many little-endian uint16. nanoGPT's files without header ("raw_u16") can be read, too.
//
// A reader maps the file and has no other state; any thread may read. If the file shrinks while it
// is mapped, the process gets SIGBUS. The checksum in the manifest detects every other change
// (dataset.h). Use a writer from one thread.
#pragma once

#include "common/base/checksum.h"
#include "common/base/choice.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"
#include "common/dataset/tokenizer.h"

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace nsa::dataset {

inline constexpr int32_t kShardMagic = 20240520;
inline constexpr int32_t kShardVersion = 1;
inline constexpr size_t kShardHeaderBytes = 256 * sizeof(int32_t);

enum class ShardFormat : uint8_t { kLlmC, kRawU16 };
constexpr auto choice_names(ShardFormat) {
  return names_of("llmc", "raw_u16");
}
Result<ShardFormat> parse_shard_format(std::string_view text);

// Returns the token count of an llm.c header. `file_bytes` must be exactly header plus tokens, so
// that a truncated file is detected before it is read. Error: kCorrupt says which field is wrong.
Result<int64_t> parse_shard_header(std::string_view header, uint64_t file_bytes);

class ShardReader {
public:
  static Result<ShardReader> open(const std::filesystem::path& path, ShardFormat format);
  ShardReader(ShardReader&& other) noexcept;
  ShardReader& operator=(ShardReader&& other) noexcept;
  ~ShardReader();

  std::span<const Token> tokens() const { return tokens_; }
  uint64_t file_bytes() const { return mapped_bytes_; }

  // XXH3-128 of the whole file, header included. Reads every page and unmaps it again.
  std::string checksum() const;
  // Releases the mapped pages. They stay in the page cache, and no longer count as resident memory
  // of this process. Later reads map them again.
  void let_go() const;

private:
  ShardReader() = default;
  void* mapping_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::span<const Token> tokens_;
};

struct WrittenShard {
  int64_t tokens = 0;
  uint64_t bytes = 0;
  std::string checksum;
};

// Writes <path>.tmp and renames it in finish(), after fsync. So a file with a shard's name is
// always complete. The destructor of an unfinished writer removes its temporary file, unless keep()
// was called.
class ShardWriter {
public:
  static Result<ShardWriter> create(std::filesystem::path path);
  // Continues after the first `tokens` tokens of a file that another writer left, finished or not,
  // and truncates the rest. Error: kCorrupt if the file has fewer.
  static Result<ShardWriter> resume(std::filesystem::path path, int64_t tokens);
  ShardWriter(ShardWriter&&) noexcept = default;
  ShardWriter& operator=(ShardWriter&&) noexcept = default;
  ~ShardWriter();

  Status append(std::span<const Token> tokens);
  int64_t tokens() const { return tokens_; }

  // Waits until the appended tokens are on disk.
  Status sync();
  // Keeps the temporary file for resume().
  void keep() { keep_ = true; }

  // Writes the header, fsyncs, renames, fsyncs the folder. Call it once; the writer is unusable
  // afterwards.
  Result<WrittenShard> finish();

private:
  ShardWriter() = default;
  std::filesystem::path path_;
  UniqueFd fd_;
  int64_t tokens_ = 0;
  bool keep_ = false;
};

} // namespace nsa::dataset
