// The bytes of one source file by offset, wherever it lies; and the same bytes as a stream,
// decompressed. One thread reads.
#pragma once

#include "common/base/result.h"
#include "common/base/unique_fd.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nsa::fetch {

struct Extent {
  uint64_t offset = 0, bytes = 0;
};

class ByteSource {
public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // What is going to be read, ascending and without overlap: it may be had in advance. Anything
  // else may be read all the same.
  virtual void expect(std::vector<Extent> extents) = 0;
  // All of `out`, which must lie inside the file.
  virtual Status read_at(uint64_t offset, std::span<char> out) = 0;
};

// kNotFound, kPermission; `remove`: the name is removed at once, the bytes go with the source.
Result<std::unique_ptr<ByteSource>> open_local(const std::filesystem::path& path,
                                               bool remove = false);

enum class Compression { kNone, kGzip, kZstd };

// Bytes from `offset` on, decompressed (several members or frames in a row, too). `name` is for
// errors. kCorrupt says that compressed data is damaged or ends too early.
class ByteStream {
public:
  virtual ~ByteStream() = default;
  // Up to out.size() bytes; 0 at the end.
  virtual Result<size_t> read(std::span<char> out) = 0;
  // How far the file was read, before decompression.
  virtual uint64_t position() const = 0;
};
std::unique_ptr<ByteStream> make_stream(ByteSource& source, std::string name,
                                        Compression compression, uint64_t offset = 0);

} // namespace nsa::fetch
