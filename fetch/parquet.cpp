// Reads a string column of a Parquet file, one row group after another, through Arrow's Parquet
// library.
#include "fetch/rows.h"

#include <arrow/io/interfaces.h>
#include <parquet/api/reader.h>

#include <algorithm>
#include <array>
#include <functional>

namespace nsa::fetch {
namespace {

constexpr int64_t kBatch = 256; // values that are decoded at a time

// Arrow reads through this class. A failed read throws through Arrow; the caller converts it back
// to an Error.
class SourceFile final : public arrow::io::RandomAccessFile {
public:
  explicit SourceFile(ByteSource& source) : source_(source) {}
  Status error; // the first error of the source

  arrow::Result<int64_t> GetSize() override { return static_cast<int64_t>(source_.size()); }
  arrow::Result<int64_t> Tell() const override { return position_; }
  arrow::Status Seek(int64_t position) override {
    position_ = position;
    return arrow::Status::OK();
  }
  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }
  arrow::Result<int64_t> Read(int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position_, bytes, out));
    position_ += got;
    return got;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(position_, bytes));
    position_ += buffer->size();
    return buffer;
  }
  arrow::Result<int64_t> ReadAt(int64_t position, int64_t bytes, void* out) override {
    const auto size = static_cast<int64_t>(source_.size());
    bytes = std::clamp<int64_t>(bytes, 0, std::max<int64_t>(0, size - position));
    auto status = source_.read_at(static_cast<uint64_t>(position),
                                  {static_cast<char*>(out), static_cast<size_t>(bytes)});
    if (status) return bytes;
    if (error) error = std::move(status);
    return arrow::Status::IOError("the source cannot be read");
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(bytes));
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position, bytes, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(got));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }

private:
  ByteSource& source_;
  int64_t position_ = 0;
  bool closed_ = false;
};

parquet::ReaderProperties reader_properties() {
  parquet::ReaderProperties properties;
  properties.enable_buffered_stream(); // reads pages on demand, not a whole column chunk
  properties.set_buffer_size(int64_t{64} << 10);
  properties.set_page_checksum_verification(true);
  return properties;
}

class ParquetRows final : public Rows {
public:
  ParquetRows(ByteSource& source, const RowsOptions& options)
      : source_(source), options_(options), file_(std::make_shared<SourceFile>(source)) {}

  Status open(RowPlace from) {
    return guarded([&]() -> Status {
      reader_ = parquet::ParquetFileReader::Open(file_, reader_properties());
      metadata_ = reader_->metadata();
      NSA_TRY(find_column());
      total_ = metadata_->num_rows();
      if (from.row > total_)
        return fail(ErrorCode::kCorrupt,
                    options_.name + " has " + std::to_string(total_) + " rows, " +
                        std::to_string(from.row) + " were read before",
                    "it changed: fetch it again with --restart");
      int64_t before = 0;
      while (group_ < metadata_->num_row_groups() &&
             before + metadata_->RowGroup(group_)->num_rows() <= from.row)
        before += metadata_->RowGroup(group_++)->num_rows();
      source_.expect(extents());
      row_ = before;
      while (row_ < from.row) {
        std::string_view ignored;
        NSA_TRY_ASSIGN(const bool there, step(ignored));
        if (!there) break;
      }
      return {};
    });
  }

  Result<bool> next(std::string_view& text) override {
    Result<bool> there = false;
    auto status = guarded([&]() -> Status {
      there = step(text);
      return {};
    });
    if (!status) return fail(std::move(status).error());
    return there;
  }
  RowPlace place() const override { return {row_, 0}; }
  double part() const override {
    return total_ == 0 ? 1 : static_cast<double>(row_) / static_cast<double>(total_);
  }

private:
  Status guarded(const std::function<Status()>& body) {
    try {
      return body();
    } catch (const std::exception& exception) {
      if (!file_->error) return file_->error;
      return fail(ErrorCode::kCorrupt, options_.name + ": " + exception.what(),
                  "get the file again; if it is whole, write its text column as JSON lines");
    }
  }

  Status find_column() {
    const parquet::SchemaDescriptor& schema = *metadata_->schema();
    column_ = schema.ColumnIndex(options_.column);
    std::string strings;
    for (int i = 0; i < schema.num_columns(); ++i)
      if (is_text(*schema.Column(i)))
        strings += (strings.empty() ? "" : ", ") + schema.Column(i)->path()->ToDotString();
    const std::string hint =
        strings.empty() ? "it has no column of text" : "its columns of text are: " + strings;
    if (column_ < 0)
      return fail(ErrorCode::kInvalidArgument,
                  options_.name + " has no column '" + options_.column + "'",
                  "name the column: --column NAME; " + hint);
    if (!is_text(*schema.Column(column_)))
      return fail(ErrorCode::kInvalidArgument,
                  "column '" + options_.column + "' of " + options_.name + " is no text", hint);
    return {};
  }

  static bool is_text(const parquet::ColumnDescriptor& column) {
    return column.physical_type() == parquet::Type::BYTE_ARRAY &&
           column.max_repetition_level() == 0;
  }

  // The column's bytes in each remaining row group.
  std::vector<Extent> extents() const {
    std::vector<Extent> found;
    for (int group = group_; group < metadata_->num_row_groups(); ++group) {
      const auto row_group = metadata_->RowGroup(group);
      const auto chunk = row_group->ColumnChunk(column_);
      int64_t begin = chunk->data_page_offset();
      if (chunk->has_dictionary_page() && chunk->dictionary_page_offset() > 0)
        begin = std::min(begin, chunk->dictionary_page_offset());
      const Extent extent{static_cast<uint64_t>(begin),
                          static_cast<uint64_t>(chunk->total_compressed_size())};
      const bool sound =
          begin >= 0 && extent.offset + extent.bytes <= source_.size() &&
          (found.empty() || extent.offset >= found.back().offset + found.back().bytes);
      if (!sound) return {}; // the order is unusual, so ranges are read on demand
      if (extent.bytes > 0) found.push_back(extent);
    }
    return found;
  }

  Result<bool> step(std::string_view& text) {
    while (at_ == levels_) {
      if (!column_reader_ || !column_reader_->HasNext()) {
        if (group_ == metadata_->num_row_groups()) return false;
        row_group_ = reader_->RowGroup(group_++);
        column_reader_ =
            std::static_pointer_cast<parquet::ByteArrayReader>(row_group_->Column(column_));
        defined_at_ = metadata_->schema()->Column(column_)->max_definition_level();
        continue;
      }
      int64_t values = 0;
      levels_ =
          column_reader_->ReadBatch(kBatch, definitions_.data(), nullptr, values_.data(), &values);
      if (defined_at_ == 0) levels_ = values;
      at_ = value_ = 0;
    }
    const bool is_null = defined_at_ > 0 && definitions_[static_cast<size_t>(at_)] < defined_at_;
    text = {};
    if (!is_null) {
      const parquet::ByteArray& bytes = values_[static_cast<size_t>(value_++)];
      text = {reinterpret_cast<const char*>(bytes.ptr), bytes.len};
    }
    ++at_;
    ++row_;
    return true;
  }

  ByteSource& source_;
  RowsOptions options_;
  std::shared_ptr<SourceFile> file_;
  std::unique_ptr<parquet::ParquetFileReader> reader_;
  std::shared_ptr<parquet::FileMetaData> metadata_;
  std::shared_ptr<parquet::RowGroupReader> row_group_;
  std::shared_ptr<parquet::ByteArrayReader> column_reader_;
  std::array<parquet::ByteArray, kBatch> values_{};
  std::array<int16_t, kBatch> definitions_{};
  int column_ = 0, group_ = 0; // group_: the next to open
  int16_t defined_at_ = 0;
  int64_t at_ = 0, levels_ = 0, value_ = 0; // positions in the batch
  int64_t row_ = 0, total_ = 0;
};

} // namespace

Result<std::unique_ptr<Rows>> open_parquet(ByteSource& source, const RowsOptions& options,
                                           RowPlace from) {
  auto rows = std::make_unique<ParquetRows>(source, options);
  NSA_TRY(rows->open(from));
  return rows;
}

bool can_parquet() {
  return true;
}

} // namespace nsa::fetch
