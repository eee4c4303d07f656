#include "common/dataset/shard.h"

#include "common/base/file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace nsa::dataset {

static_assert(std::endian::native == std::endian::little, "shards are read in place");

Result<ShardFormat> parse_shard_format(std::string_view text) {
  if (const auto format = choice_from<ShardFormat>(text)) return *format;
  return fail(ErrorCode::kInvalidArgument, "there is no shard format '" + std::string(text) + "'",
              "use 'llmc' or 'raw_u16'");
}

Result<int64_t> parse_shard_header(std::string_view header, uint64_t file_bytes) {
  if (header.size() < kShardHeaderBytes)
    return fail(ErrorCode::kCorrupt, "is " + std::to_string(file_bytes) +
                                         " bytes long, shorter than a shard's header of " +
                                         std::to_string(kShardHeaderBytes));
  int32_t field[3];
  std::memcpy(field, header.data(), sizeof field);
  if (field[0] != kShardMagic)
    return fail(ErrorCode::kCorrupt, "begins with " + std::to_string(field[0]) +
                                         ", a token shard with " + std::to_string(kShardMagic));
  if (field[1] != kShardVersion)
    return fail(ErrorCode::kUnsupported,
                "has shard version " + std::to_string(field[1]) + ", only 1 (uint16) is read");
  if (field[2] < 0)
    return fail(ErrorCode::kCorrupt, "announces " + std::to_string(field[2]) + " tokens");
  const uint64_t expected = kShardHeaderBytes + static_cast<uint64_t>(field[2]) * sizeof(Token);
  if (file_bytes != expected)
    return fail(ErrorCode::kCorrupt, "announces " + std::to_string(field[2]) + " tokens (" +
                                         std::to_string(expected) + " bytes) and has " +
                                         std::to_string(file_bytes) + " bytes");
  return field[2];
}

Result<ShardReader> ShardReader::open(const std::filesystem::path& path, ShardFormat format) {
  auto opened = open_regular_file(path);
  if (!opened) return fail(std::move(opened).error().within("shard"));
  const UniqueFd fd = std::move(*opened);
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return fail_errno("cannot stat shard " + path.string());
  if (info.st_size == 0) return fail(ErrorCode::kCorrupt, "shard " + path.string() + " is empty");
  ShardReader reader;
  const auto bytes = static_cast<size_t>(info.st_size);
  void* mapping = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return fail_errno("cannot map shard " + path.string());
  reader.mapping_ = mapping;
  reader.mapped_bytes_ = bytes;
  const char* data = static_cast<const char*>(mapping);
  if (format == ShardFormat::kRawU16) {
    if (bytes % sizeof(Token) != 0)
      return fail(ErrorCode::kCorrupt, "shard " + path.string() + " has an odd number of bytes (" +
                                           std::to_string(bytes) + ")");
    reader.tokens_ = {reinterpret_cast<const Token*>(data), bytes / sizeof(Token)};
    return reader;
  }
  auto tokens = parse_shard_header({data, std::min(bytes, kShardHeaderBytes)}, bytes);
  if (!tokens) {
    Error error = std::move(tokens).error();
    error.what = "shard " + path.string() + " " + error.what;
    return fail(std::move(error));
  }
  reader.tokens_ = {reinterpret_cast<const Token*>(data + kShardHeaderBytes),
                    static_cast<size_t>(*tokens)};
  return reader;
}

ShardReader::ShardReader(ShardReader&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      tokens_(std::exchange(other.tokens_, {})) {}

ShardReader& ShardReader::operator=(ShardReader&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(tokens_, other.tokens_);
  return *this;
}

ShardReader::~ShardReader() {
  if (mapping_) ::munmap(mapping_, mapped_bytes_);
}

std::string ShardReader::checksum() const {
  // Reads piece by piece, so that a large shard never counts as this process's resident memory.
  constexpr size_t kPiece = size_t{4} << 20;
  ChecksumStream sum;
  for (size_t at = 0; at < mapped_bytes_; at += kPiece) {
    char* const piece = static_cast<char*>(mapping_) + at;
    const size_t bytes = std::min(kPiece, mapped_bytes_ - at);
    sum.update(piece, bytes);
    ::madvise(piece, bytes, MADV_DONTNEED);
  }
  return sum.hex();
}

void ShardReader::let_go() const {
  ::madvise(mapping_, mapped_bytes_, MADV_DONTNEED);
}

namespace {

std::filesystem::path temporary_of(const std::filesystem::path& path) {
  return path.string() + ".tmp";
}

} // namespace

Result<ShardWriter> ShardWriter::create(std::filesystem::path path) {
  ShardWriter writer;
  writer.path_ = std::move(path);
  const std::filesystem::path temporary = temporary_of(writer.path_);
  writer.fd_.reset(::open(temporary.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!writer.fd_) return fail_errno("cannot create " + temporary.string());
  const std::string room(kShardHeaderBytes, '\0');
  NSA_TRY(write_all(writer.fd_.get(), room.data(), room.size()));
  return writer;
}

Result<ShardWriter> ShardWriter::resume(std::filesystem::path path, int64_t tokens) {
  ShardWriter writer;
  writer.path_ = std::move(path);
  writer.tokens_ = tokens;
  writer.keep_ = true;
  const std::filesystem::path temporary = temporary_of(writer.path_);
  std::error_code error;
  // A writer finished the file, but its process ended before recording that.
  if (!std::filesystem::exists(temporary, error) && std::filesystem::exists(writer.path_, error))
    std::filesystem::rename(writer.path_, temporary, error);
  writer.fd_.reset(::open(temporary.c_str(), O_RDWR | O_CLOEXEC));
  if (!writer.fd_) return fail_errno("cannot open " + temporary.string());
  struct stat info{};
  if (::fstat(writer.fd_.get(), &info) != 0) return fail_errno("cannot stat " + temporary.string());
  const auto bytes =
      static_cast<off_t>(kShardHeaderBytes + static_cast<size_t>(tokens) * sizeof(Token));
  if (info.st_size < bytes)
    return fail(ErrorCode::kCorrupt, temporary.string() + " has " + std::to_string(info.st_size) +
                                         " bytes, " + std::to_string(bytes) + " were written");
  if (::ftruncate(writer.fd_.get(), bytes) != 0)
    return fail_errno("cannot cut " + temporary.string());
  if (::lseek(writer.fd_.get(), 0, SEEK_END) != bytes)
    return fail_errno("cannot seek in " + temporary.string());
  return writer;
}

ShardWriter::~ShardWriter() {
  if (fd_ && !keep_) ::unlink(temporary_of(path_).c_str());
}

Status ShardWriter::append(std::span<const Token> tokens) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (tokens_ + static_cast<int64_t>(tokens.size()) > kMost)
    return fail(ErrorCode::kInvalidArgument, "a shard holds at most " + std::to_string(kMost) +
                                                 " tokens: its header counts with 32 bits");
  if (auto status = write_all(fd_.get(), tokens.data(), tokens.size_bytes()); !status)
    return fail(std::move(status).error().within("writing shard " + path_.string()));
  tokens_ += static_cast<int64_t>(tokens.size());
  return {};
}

Status ShardWriter::sync() {
  if (::fdatasync(fd_.get()) != 0) return fail_errno("cannot sync shard " + path_.string());
  return {};
}

Result<WrittenShard> ShardWriter::finish() {
  int32_t header[kShardHeaderBytes / sizeof(int32_t)] = {kShardMagic, kShardVersion,
                                                         static_cast<int32_t>(tokens_)};
  const std::filesystem::path temporary = temporary_of(path_);
  if (::pwrite(fd_.get(), header, sizeof header, 0) != static_cast<ssize_t>(sizeof header))
    return fail_errno("cannot write the header of " + temporary.string());
  if (::fsync(fd_.get()) != 0) return fail_errno("cannot fsync " + temporary.string());
  WrittenShard written;
  {
    // The checksum is read back and not computed while writing, so that it covers the stored bytes.
    NSA_TRY_ASSIGN(const ShardReader reader, ShardReader::open(temporary, ShardFormat::kLlmC));
    written = {tokens_, reader.file_bytes(), reader.checksum()};
  }
  if (::rename(temporary.c_str(), path_.c_str()) != 0)
    return fail_errno("cannot rename " + temporary.string());
  fd_.reset();
  NSA_TRY(sync_folder(path_.parent_path()));
  return written;
}

} // namespace nsa::dataset
