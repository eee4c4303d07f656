// The bytes of one source file by offset, local or remote; and the same bytes as a decompressed
// stream. One thread reads.
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
  // Announces the ranges that will be read, ascending and without overlap, so that they may be
  // prefetched. Other ranges may be read as well.
  virtual void expect(std::vector<Extent> extents) = 0;
  // Fills all of `out`, which must lie inside the file.
  virtual Status read_at(uint64_t offset, std::span<char> out) = 0;
};

// Fails with kNotFound or kPermission. `remove` unlinks the file at once; its bytes stay until the
// source is destroyed.
Result<std::unique_ptr<ByteSource>> open_local(const std::filesystem::path& path,
                                               bool remove = false);

enum class Compression { kNone, kGzip, kZstd };

// Bytes from `offset` on, decompressed, including several members or frames in a row. `name` is for
// errors. kCorrupt says that compressed data is damaged or ends too early.
class ByteStream {
public:
  virtual ~ByteStream() = default;
  // Returns up to out.size() bytes; 0 at the end.
  virtual Result<size_t> read(std::span<char> out) = 0;
  // Position in the file, before decompression.
  virtual uint64_t position() const = 0;
};
std::unique_ptr<ByteStream> make_stream(ByteSource& source, std::string name,
                                        Compression compression, uint64_t offset = 0);

} // namespace nsa::fetch
