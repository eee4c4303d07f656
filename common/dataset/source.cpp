#include "common/dataset/source.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <string_view>
#include <unistd.h>
#include <zlib.h>

namespace nsa::dataset {
namespace fs = std::filesystem;
namespace {

constexpr size_t kInputBytes = size_t{1} << 18;

// File formats that are not text, recognised by their first bytes, and how to convert them to text.
struct Foreign {
  std::string_view begin, what, next;
};
constexpr std::string_view kAsRows =
    "write its text column as JSON lines, {\"text\": ...} a row, into a .jsonl file";
constexpr Foreign kForeign[] = {
    {"PAR1", "a Parquet file", "nsactl data fetch reads it: nsactl data fetch --out FOLDER FILE"},
    {"ARROW1", "an Arrow file", kAsRows},
    {"SQLite format 3", "an SQLite database", kAsRows},
    {"\x28\xB5\x2F\xFD", "compressed by Zstandard", "decompress it: zstd -d FILE"},
    {"\xFD"
     "7zXZ",
     "compressed by xz", "decompress it: xz -d FILE"},
    {"PK\x03\x04", "a zip archive", "unpack it: unzip FILE"},
    {"%PDF-", "a PDF file", "make text of it: pdftotext FILE"},
};

// Returns the name without a compression suffix.
fs::path without_compression(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".gz" || extension == ".dz" ? path.stem() : path.filename();
}

bool is_named_gzip(const fs::path& path) {
  return without_compression(path) != path.filename();
}

bool looks_like_text(const fs::path& path) {
  static const std::set<std::string> kKnown = {".txt", ".text", ".md", ".rst", ".jsonl"};
  return kKnown.contains(without_compression(path).extension().string());
}

Result<SourceFile> source_file(const fs::path& path) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error)
    return fail(error == std::errc::no_such_file_or_directory ? ErrorCode::kNotFound
                                                              : ErrorCode::kSystem,
                "cannot read " + path.string() + ": " + error.message(),
                "name files and folders that exist and may be read");
  return SourceFile{path, without_compression(path).extension() == ".jsonl", bytes};
}

Status walk(const fs::path& folder, SourceList& list) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error);
  while (!error && at != fs::recursive_directory_iterator()) {
    const bool hidden = at->path().filename().string().starts_with(".");
    if (hidden && at->is_directory(error))
      at.disable_recursion_pending();
    else if (!hidden && at->is_regular_file(error))
      found.push_back(at->path());
    if (!error) at.increment(error);
  }
  if (error)
    return fail(ErrorCode::kSystem, "cannot walk " + folder.string() + ": " + error.message());
  std::sort(found.begin(), found.end());
  for (const fs::path& path : found) {
    if (!looks_like_text(path)) {
      list.passed_over.push_back(path.string());
      continue;
    }
    NSA_TRY_ASSIGN(SourceFile file, source_file(path));
    list.files.push_back(std::move(file));
  }
  return {};
}

} // namespace

uint64_t SourceList::bytes() const {
  uint64_t sum = 0;
  for (const SourceFile& file : files)
    sum += file.bytes;
  return sum;
}

Result<SourceList> list_sources(const std::vector<fs::path>& inputs) {
  SourceList list;
  for (const fs::path& input : inputs) {
    std::error_code error;
    if (fs::is_directory(input, error)) {
      NSA_TRY(walk(input, list));
    } else {
      NSA_TRY_ASSIGN(SourceFile file, source_file(input));
      list.files.push_back(std::move(file));
    }
  }
  if (list.files.empty())
    return fail(ErrorCode::kInvalidArgument,
                "no text found" +
                    (list.passed_over.empty()
                         ? std::string()
                         : ": " + std::to_string(list.passed_over.size()) +
                               " files passed over, such as " + list.passed_over.front()),
                "name files, or folders with .txt, .md, .rst or .jsonl files (also .gz)");
  std::set<fs::path> seen;
  for (const SourceFile& file : list.files) {
    std::error_code error;
    if (!seen.insert(fs::canonical(file.path, error)).second)
      return fail(ErrorCode::kInvalidArgument, file.path.string() + " is given twice",
                  "name it once; a folder holds all files below it");
  }
  return list;
}

struct SourceReader::Inflater {
  z_stream stream{};
  bool inside_member = true;
  // 16 selects gzip header and trailer; zlib verifies the checksum.
  Inflater() { inflateInit2(&stream, 16 + MAX_WBITS); }
  ~Inflater() { inflateEnd(&stream); }
};

SourceReader::SourceReader() : input_(kInputBytes) {}
SourceReader::SourceReader(SourceReader&&) noexcept = default;
SourceReader& SourceReader::operator=(SourceReader&&) noexcept = default;
SourceReader::~SourceReader() = default;

Result<SourceReader> SourceReader::open(const fs::path& path) {
  SourceReader reader;
  reader.path_ = path;
  reader.fd_.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reader.fd_)
    return fail_errno("cannot open " + path.string(), "make it readable, or leave it out");
  NSA_TRY(reader.refill());
  const bool gzip = reader.input_end_ >= 2 &&
                    static_cast<unsigned char>(reader.input_[0]) == 0x1F &&
                    static_cast<unsigned char>(reader.input_[1]) == 0x8B;
  if (gzip) reader.inflater_ = std::make_unique<Inflater>();
  const std::string_view begin(reader.input_.data(), reader.input_end_);
  for (const Foreign& format : kForeign)
    if (begin.starts_with(format.begin))
      return fail(ErrorCode::kInvalidArgument,
                  path.string() + " is no text: " + std::string(format.what),
                  std::string(format.next));
  // Such a file often is an HTML page that says "not found", which must not become training text.
  if (!gzip && is_named_gzip(path))
    return fail(ErrorCode::kCorrupt, path.string() + " is not gzip, but its name says so",
                "look at it: file FILE; fetch it again, or take the ending off the name");
  return reader;
}

Error SourceReader::damaged(std::string_view how) const {
  return {ErrorCode::kCorrupt, path_.string() + " " + std::string(how),
          "fetch the file again; 'gzip -t' checks it"};
}

Status SourceReader::refill() {
  input_begin_ = input_end_ = 0;
  while (true) {
    const ssize_t got = ::read(fd_.get(), input_.data(), input_.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno("cannot read " + path_.string());
    input_end_ = static_cast<size_t>(got);
    file_bytes_ += static_cast<uint64_t>(got);
    checksum_.update(input_.data(), input_end_);
    return {};
  }
}

Result<size_t> SourceReader::read(std::span<char> out) {
  if (inflater_) return inflate_into(out);
  if (input_begin_ == input_end_) NSA_TRY(refill());
  const size_t count = std::min(out.size(), input_end_ - input_begin_);
  std::memcpy(out.data(), input_.data() + input_begin_, count);
  input_begin_ += count;
  return count;
}

Result<size_t> SourceReader::inflate_into(std::span<char> out) {
  z_stream& stream = inflater_->stream;
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  while (stream.avail_out > 0) {
    if (input_begin_ == input_end_) {
      NSA_TRY(refill());
      if (input_end_ == 0) {
        if (inflater_->inside_member)
          return fail(damaged("ends in the middle of its compressed data"));
        break;
      }
    }
    if (!inflater_->inside_member) { // another member follows the last one
      inflateReset(&stream);
      inflater_->inside_member = true;
    }
    stream.next_in = reinterpret_cast<Bytef*>(input_.data() + input_begin_);
    stream.avail_in = static_cast<uInt>(input_end_ - input_begin_);
    const int status = ::inflate(&stream, Z_NO_FLUSH);
    input_begin_ = input_end_ - stream.avail_in;
    if (status == Z_STREAM_END)
      inflater_->inside_member = false;
    else if (status != Z_OK)
      return fail(damaged("has damaged gzip data near byte " +
                          std::to_string(file_bytes_ - stream.avail_in)));
  }
  return out.size() - stream.avail_out;
}

} // namespace nsa::dataset
