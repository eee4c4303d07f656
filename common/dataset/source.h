// Source files: which ones an input names, and their bytes, decompressed. One thread a reader.
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
  std::filesystem::path path; // as given, or below the folder that was given
  bool json_lines = false;    // by name: .jsonl, .jsonl.gz
  uint64_t bytes = 0;         // on disk
};

struct SourceList {
  std::vector<SourceFile> files;        // in the order given; inside a folder by path
  std::vector<std::string> passed_over; // in folders: names that say nothing of text
  uint64_t bytes() const;
};

// Files count whatever their names; folders are walked for .txt .text .md .rst .jsonl, each also
// with .gz or .dz. kInvalidArgument when a file comes up twice or nothing is found.
Result<SourceList> list_sources(const std::vector<std::filesystem::path>& inputs);

// Bytes of a file from its beginning; gzip, recognised by its first bytes, is decompressed (also
// several members in a row). kCorrupt names the file when its compressed data is damaged or torn.
class SourceReader {
public:
  static Result<SourceReader> open(const std::filesystem::path& path);
  SourceReader(SourceReader&&) noexcept;
  SourceReader& operator=(SourceReader&&) noexcept;
  ~SourceReader();

  // Fills up to out.size() bytes; 0 at the end.
  Result<size_t> read(std::span<char> out);

  uint64_t file_bytes_read() const { return file_bytes_; }
  std::string checksum() const { return checksum_.hex(); } // of the file's bytes read so far

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
  std::unique_ptr<Inflater> inflater_; // none: plain bytes
};

} // namespace nsa::dataset
