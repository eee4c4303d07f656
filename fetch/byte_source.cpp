#include "fetch/byte_source.h"

#include "common/base/file.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

namespace nsa::fetch {
namespace {

constexpr size_t kInputBytes = size_t{64} << 10;

class LocalSource final : public ByteSource {
public:
  LocalSource(std::filesystem::path path, UniqueFd fd, uint64_t size)
      : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  uint64_t size() const override { return size_; }
  void expect(std::vector<Extent>) override {}
  Status read_at(uint64_t offset, std::span<char> out) override {
    while (!out.empty()) {
      const ssize_t got = ::pread(fd_.get(), out.data(), out.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return fail_errno("cannot read " + path_.string());
      if (got == 0)
        return fail(ErrorCode::kCorrupt, path_.string() + " became shorter while it was read",
                    "leave the file alone, and run the same command again");
      offset += static_cast<uint64_t>(got);
      out = out.subspan(static_cast<size_t>(got));
    }
    return {};
  }

private:
  std::filesystem::path path_;
  UniqueFd fd_;
  uint64_t size_;
};

// Reads the source in order, a buffer at a time.
class PlainStream : public ByteStream {
public:
  PlainStream(ByteSource& source, uint64_t offset) : source_(source), offset_(offset) {
    if (offset < source.size()) source.expect({{offset, source.size() - offset}});
  }
  Result<size_t> read(std::span<char> out) override {
    const size_t count = std::min<uint64_t>(out.size(), source_.size() - offset_);
    if (count > 0) NSA_TRY(source_.read_at(offset_, out.first(count)));
    offset_ += count;
    return count;
  }
  uint64_t position() const override { return offset_; }

private:
  ByteSource& source_;
  uint64_t offset_;
};

// Common code of gzip and Zstandard: an input buffer, and the check that the file does not end
// inside a frame.
class Decompressor : public ByteStream {
public:
  Decompressor(ByteSource& source, std::string name, const char* kind, const char* check,
               uint64_t offset)
      : input_(source, offset), name_(std::move(name)), kind_(kind), check_(check) {}

  Result<size_t> read(std::span<char> out) override {
    size_t filled = 0;
    while (filled < out.size()) {
      // When all input is used up, output may still be pending because the buffer was full.
      if (begin_ == end_ && !full_) {
        NSA_TRY_ASSIGN(end_, input_.read(buffer_));
        begin_ = 0;
        if (end_ == 0) {
          if (inside_) return fail(damaged("ends in the middle of its compressed data"));
          break;
        }
      }
      const std::span<const char> in(buffer_.data() + begin_, end_ - begin_);
      size_t used = 0, made = 0;
      if (!step(in, out.subspan(filled), used, made)) {
        if (!begun_ && !begins_as_named(in)) return fail(of_another_kind());
        return fail(damaged("has damaged compressed data near byte " +
                            std::to_string(input_.position() - end_ + begin_)));
      }
      begun_ = true;
      begin_ += used;
      filled += made;
      full_ = inside_ && filled == out.size();
    }
    return filled;
  }
  uint64_t position() const override { return input_.position(); }

protected:
  virtual bool begins_as_named(std::span<const char> file) const = 0;
  // Decompresses some of `in` and updates inside_. False: the data is damaged.
  virtual bool step(std::span<const char> in, std::span<char> out, size_t& used, size_t& made) = 0;
  bool inside_ = true; // a file without a single frame is damaged, too

private:
  Error damaged(const std::string& how) const {
    return {ErrorCode::kCorrupt, name_ + " " + how,
            std::string("get the file again and check it: ") + check_ + " FILE"};
  }

  Error of_another_kind() const {
    return {ErrorCode::kCorrupt, name_ + " is not " + kind_ + ", but its name says so",
            "look at it: file FILE; get it again, or take the ending off the name"};
  }

  PlainStream input_;
  std::string name_;
  const char* kind_;
  const char* check_;
  std::vector<char> buffer_ = std::vector<char>(kInputBytes);
  size_t begin_ = 0, end_ = 0;
  bool begun_ = false; // a first step has succeeded
  bool full_ = false;  // the last step stopped because the output was full
};

class GzipStream final : public Decompressor {
public:
  GzipStream(ByteSource& source, std::string name, uint64_t offset)
      : Decompressor(source, std::move(name), "gzip", "gzip -t", offset) {
    inflateInit2(&stream_, 16 + MAX_WBITS); // 16 selects gzip's header and checksum
  }
  ~GzipStream() override { inflateEnd(&stream_); }

private:
  bool begins_as_named(std::span<const char> file) const override {
    return std::string_view(file.data(), file.size()).starts_with("\x1F\x8B");
  }
  bool step(std::span<const char> in, std::span<char> out, size_t& used, size_t& made) override {
    if (!inside_) inflateReset(&stream_); // another member follows the last one
    inside_ = true;
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
    stream_.avail_in = static_cast<uInt>(in.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    used = in.size() - stream_.avail_in;
    made = out.size() - stream_.avail_out;
    if (status == Z_STREAM_END) inside_ = false;
    // Z_BUF_ERROR means that there was no input.
    return status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR;
  }
  z_stream stream_{};
};

class ZstdStream final : public Decompressor {
public:
  ZstdStream(ByteSource& source, std::string name, uint64_t offset)
      : Decompressor(source, std::move(name), "Zstandard", "zstd -t", offset),
        stream_(ZSTD_createDStream()) {
    // Needed for files made with --long=31.
    ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, 31);
  }
  ~ZstdStream() override { ZSTD_freeDStream(stream_); }

private:
  bool begins_as_named(std::span<const char> file) const override {
    return std::string_view(file.data(), file.size()).starts_with("\x28\xB5\x2F\xFD");
  }
  bool step(std::span<const char> in, std::span<char> out, size_t& used, size_t& made) override {
    ZSTD_inBuffer input{in.data(), in.size(), 0};
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    const size_t left = ZSTD_decompressStream(stream_, &output, &input);
    used = input.pos;
    made = output.pos;
    inside_ = left != 0;
    return ZSTD_isError(left) == 0;
  }
  ZSTD_DStream* stream_;
};

} // namespace

Result<std::unique_ptr<ByteSource>> open_local(const std::filesystem::path& path, bool remove) {
  NSA_TRY_ASSIGN(UniqueFd fd, open_regular_file(path));
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("cannot stat " + path.string());
  if (remove) ::unlink(path.c_str());
  return std::make_unique<LocalSource>(path, std::move(fd), static_cast<uint64_t>(info.st_size));
}

std::unique_ptr<ByteStream> make_stream(ByteSource& source, std::string name,
                                        Compression compression, uint64_t offset) {
  if (compression == Compression::kGzip)
    return std::make_unique<GzipStream>(source, std::move(name), offset);
  if (compression == Compression::kZstd)
    return std::make_unique<ZstdStream>(source, std::move(name), offset);
  return std::make_unique<PlainStream>(source, offset);
}

} // namespace nsa::fetch
