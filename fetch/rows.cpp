#include "fetch/rows.h"

#include "common/base/text.h"
#include "common/dataset/document.h"
#include "fetch/synthetic.h"

#include <algorithm>
#include <deque>

namespace nsa::fetch {
namespace {

// Small, so that a slow source gives its first documents soon.
constexpr size_t kChunkBytes = size_t{64} << 10;
constexpr size_t kLargestRow = size_t{256} << 20;

double part_of(const ByteSource& source, const ByteStream& stream) {
  return source.size() == 0
             ? 1
             : static_cast<double>(stream.position()) / static_cast<double>(source.size());
}

// JSON lines. Each row knows its offset, so a plain file needs no second pass.
class LineRows final : public Rows {
public:
  LineRows(ByteSource& source, const RowsOptions& options, RowPlace from)
      : source_(source), name_(options.name), seekable_(options.compression == Compression::kNone),
        place_(seekable_ ? from : RowPlace{}),
        stream_(make_stream(source, options.name, options.compression, place_.offset)) {}

  Result<bool> next(std::string_view& text) override {
    size_t searched = begin_;
    size_t end;
    while ((end = pending_.find('\n', searched)) == std::string::npos) {
      // Erased once for each chunk, so that many rows of one chunk cost linear time.
      pending_.erase(0, begin_);
      begin_ = 0;
      searched = pending_.size();
      if (searched > kLargestRow)
        return fail(ErrorCode::kExhausted,
                    name_ + ":" + std::to_string(place_.row + 1) + ": the row is larger than " +
                        format_bytes(kLargestRow),
                    "write one JSON object a line");
      pending_.resize(searched + kChunkBytes);
      NSA_TRY_ASSIGN(const size_t got,
                     stream_->read(std::span(pending_).subspan(searched, kChunkBytes)));
      pending_.resize(searched + got);
      if (got > 0) continue;
      if (pending_.empty()) return false;
      end = pending_.size(); // the last row has no newline
      break;
    }
    text = std::string_view(pending_).substr(begin_, end - begin_);
    const size_t behind = std::min(end + 1, pending_.size());
    if (place_.row == 0 && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    ++place_.row;
    if (seekable_) place_.offset += behind - begin_;
    begin_ = behind;
    return true;
  }
  RowPlace place() const override { return place_; }
  double part() const override { return part_of(source_, *stream_); }

private:
  ByteSource& source_;
  std::string name_;
  bool seekable_;
  RowPlace place_;
  std::unique_ptr<ByteStream> stream_;
  std::string pending_;
  size_t begin_ = 0; // start of the next row in pending_
};

// Plain text: the file, or its paragraphs.
class TextRows final : public Rows {
public:
  TextRows(ByteSource& source, const RowsOptions& options)
      : source_(source), name_(options.name),
        stream_(make_stream(source, options.name, options.compression)),
        cutter_(options.paragraphs ? dataset::Cut::kParagraphs : dataset::Cut::kWhole,
                options.min_document_bytes, [this](std::string_view text, int64_t) -> Status {
                  ready_.emplace_back(text);
                  return {};
                }) {}

  Result<bool> next(std::string_view& text) override {
    if (given_) ready_.pop_front();
    given_ = false;
    while (ready_.empty() && !finished_) {
      NSA_TRY_ASSIGN(const size_t got, stream_->read(chunk_));
      finished_ = got == 0;
      auto status = finished_ ? cutter_.finish() : cutter_.push({chunk_.data(), got});
      if (!status) return fail(std::move(status).error().within(name_));
    }
    if (ready_.empty()) return false;
    text = ready_.front();
    given_ = true;
    ++row_;
    return true;
  }
  RowPlace place() const override { return {row_, 0}; }
  double part() const override { return part_of(source_, *stream_); }

private:
  ByteSource& source_;
  std::string name_;
  std::unique_ptr<ByteStream> stream_;
  dataset::DocumentCutter cutter_;
  std::vector<char> chunk_ = std::vector<char>(kChunkBytes);
  std::deque<std::string> ready_;
  bool given_ = false, finished_ = false;
  int64_t row_ = 0;
};

class SyntheticRows final : public Rows {
public:
  SyntheticRows(Synthetic set, RowPlace from) : set_(set), row_(from.row) {}
  Result<bool> next(std::string_view& text) override {
    if (row_ == set_.documents) return false;
    text = document_ = make_document(set_, row_++);
    return true;
  }
  RowPlace place() const override { return {row_, 0}; }
  double part() const override {
    return static_cast<double>(row_) / static_cast<double>(set_.documents);
  }

private:
  const Synthetic set_;
  int64_t row_;
  std::string document_;
};

} // namespace

Result<std::unique_ptr<Rows>> open_synthetic(const std::string& name, RowPlace from) {
  NSA_TRY_ASSIGN(const Synthetic set, parse_synthetic(name));
  return std::make_unique<SyntheticRows>(set, from);
}

Result<std::unique_ptr<Rows>> open_rows(ByteSource& source, const RowsOptions& options,
                                        RowPlace from) {
  if (options.format == Format::kParquet) return open_parquet(source, options, from);
  std::unique_ptr<Rows> rows;
  if (options.format == Format::kJsonLines)
    rows = std::make_unique<LineRows>(source, options, from);
  else
    rows = std::make_unique<TextRows>(source, options);
  std::string_view text;
  while (rows->place().row < from.row) {
    NSA_TRY_ASSIGN(const bool there, rows->next(text));
    if (!there)
      return fail(ErrorCode::kCorrupt,
                  options.name + " has " + std::to_string(rows->place().row) + " documents, " +
                      std::to_string(from.row) + " were read before",
                  "it changed: fetch it again with --restart");
  }
  return rows;
}

} // namespace nsa::fetch
