// The documents of one source file, in order, from any of them on. One thread.
#pragma once

#include "common/base/result.h"
#include "fetch/byte_source.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace nsa::fetch {

enum class Format { kParquet, kJsonLines, kText, kSynthetic };

// Where a reader stands in a file: behind `row` documents. `offset` lets plain JSON lines begin
// there at once; other formats find the row by its number.
struct RowPlace {
  int64_t row = 0;
  uint64_t offset = 0;
};

class Rows {
public:
  virtual ~Rows() = default;
  // The next document (of kJsonLines: the row as it is), valid until the next call; false: none is
  // left. Nulls are empty documents.
  virtual Result<bool> next(std::string_view& text) = 0;
  virtual RowPlace place() const = 0; // behind what next() gave
  virtual double part() const = 0;    // of the file that was read, 0 to 1
};

struct RowsOptions {
  std::string name; // for errors
  Format format = Format::kParquet;
  Compression compression = Compression::kNone;
  std::string column = "text";
  bool paragraphs = false; // of kText: a document ends at blank lines
  int64_t min_document_bytes = 0;
};

// `source` must outlive the rows. Reads what it needs to find `from`.
Result<std::unique_ptr<Rows>> open_rows(ByteSource& source, const RowsOptions& options,
                                        RowPlace from);

// Of a set that is made: fetch/synthetic.h.
Result<std::unique_ptr<Rows>> open_synthetic(const std::string& name, RowPlace from);

// Of a Parquet file's column of strings; kUnsupported where Arrow was not there at build time.
Result<std::unique_ptr<Rows>> open_parquet(ByteSource& source, const RowsOptions& options,
                                           RowPlace from);
bool can_parquet();

} // namespace nsa::fetch
