// Source files: which files an input names, and their decompressed bytes. Use each reader from one
// thread.
#pragma once

#include "common/base/checksum.h"
#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nsa::dataset {

struct SourceFile {
  std::filesystem::path path; // the given path, or a file below the given folder
  bool json_lines = false;    // the name ends in .jsonl or .jsonl.gz
  uint64_t bytes = 0;         // size on disk
};

struct SourceList {
  std::vector<SourceFile> files;        // in the given order; by path within a folder
  std::vector<std::string> passed_over; // files in folders whose names are not those of text
  uint64_t bytes() const;
};

// A file may have any name. In folders, files .txt .text .md .rst .jsonl are listed, each also with
// .gz or .dz. Error: kInvalidArgument if a file occurs twice or none is found.
Result<SourceList> list_sources(const std::vector<std::filesystem::path>& inputs);

// Reads a file from its beginning. It detects gzip by its first bytes and decompresses it, also
// several members in sequence. Error: kCorrupt names the file if its compressed data is damaged or
// truncated.
class SourceReader {
public:
  static Result<SourceReader> open(const std::filesystem::path& path);
  SourceReader(SourceReader&&) noexcept;
  SourceReader& operator=(SourceReader&&) noexcept;
  ~SourceReader();

  // Fills up to out.size() bytes; 0 at the end.
  Result<size_t> read(std::span<char> out);

  uint64_t file_bytes_read() const { return file_bytes_; }
  std::string checksum() const { return checksum_.hex(); } // covers the bytes read so far

private:
  struct Inflater;
  SourceReader();
  Status refill();
  Result<size_t> inflate_into(std::span<char> out);
  Error damaged(std::string_view how) const;

  std::filesystem::path path_;
  UniqueFd fd_;
  ChecksumStream checksum_;
  uint64_t file_bytes_ = 0;
  std::vector<char> input_;
  size_t input_begin_ = 0, input_end_ = 0;
  std::unique_ptr<Inflater> inflater_; // null: plain bytes
};

} // namespace nsa::dataset
