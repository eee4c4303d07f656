// Reads and writes safetensors files: named tensors without code or pickles (format of
// huggingface/safetensors: u64 little-endian header length, JSON header, data). The format needs a
// little-endian host.
//
// The reader checks header size, shapes and offsets before it reads data; every byte of the data
// belongs to exactly one tensor. Blocking file I/O; use a reader from one thread at a time.
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
std::string_view data_type_name(DataType type); // for example "F32"
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
  std::string checksum; // XXH3-128 of the whole file, computed while writing
};

// Creates or truncates `path`, writes and fsyncs it. Errors: kInvalidArgument if names repeat or a
// tensor's bytes do not fit its shape; kExhausted if the disk is full.
Result<WrittenFile> write(const std::filesystem::path& path, const std::vector<TensorView>& tensors,
                          const Metadata& metadata);

class Reader {
public:
  struct Entry {
    DataType type = DataType::kF32;
    std::vector<int64_t> shape;
    uint64_t begin = 0, end = 0; // offsets within the data
  };

  // Error: kCorrupt says what is wrong with the file.
  static Result<Reader> open(const std::filesystem::path& path);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const Metadata& metadata() const { return metadata_; }

  // Reads a whole tensor. Errors: kNotFound if it does not exist; kInvalidArgument if type or shape
  // differs.
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
