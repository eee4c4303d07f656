// safetensors files: named tensors, no code, no pickles (format of huggingface/safetensors: u64
// little-endian header length, JSON header, data). Little-endian hosts only, as the format is.
//
// The reader trusts nothing: header size, shapes and offsets are checked before a byte of data is
// touched; every byte of the data belongs to exactly one tensor. Blocking file I/O; a reader may be
// used by one thread at a time.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::safetensors {

enum class DataType { kF32, kBF16, kF16, kF64, kI64, kU8 };
std::string_view data_type_name(DataType type); // "F32", ...
size_t data_type_bytes(DataType type);

// A tensor to write: row-major, contiguous, not owned.
struct TensorView {
  std::string name;
  DataType type = DataType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

using Metadata = std::map<std::string, std::string>;

struct WrittenFile {
  uint64_t bytes = 0;
  std::string checksum; // XXH3-128 of the whole file, taken on its way out
};

// Creates or truncates `path`, writes and fsyncs it. kInvalidArgument when names repeat or a
// tensor's bytes do not fit its shape; kExhausted when the disk is full.
Result<WrittenFile> write(const std::filesystem::path& path, const std::vector<TensorView>& tensors,
                          const Metadata& metadata);

class Reader {
public:
  struct Entry {
    DataType type = DataType::kF32;
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0; // within the data
  };

  // kCorrupt names what is wrong with the file.
  static Result<Reader> open(const std::filesystem::path& path);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const Metadata& metadata() const { return metadata_; }

  // Reads a whole tensor. kNotFound without it; kInvalidArgument when type or shape is another.
  Status read(const std::string& name, DataType type, const std::vector<int64_t>& shape,
              std::span<std::byte> into) const;

private:
  Reader() = default;
  std::string path_;
  UniqueFd fd_;
  uint64_t data_begin_ = 0;
  std::map<std::string, Entry> entries_;
  Metadata metadata_;
};

} // namespace nsa::safetensors
