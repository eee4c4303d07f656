// The documents of one source file, in order, starting at any of them. One thread.
#pragma once

#include "common/base/result.h"
#include "fetch/byte_source.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace nsa::fetch {

enum class Format { kParquet, kJsonLines, kText, kSynthetic };

// Position of a reader in a file: after `row` documents. `offset` lets plain JSON lines start there
// at once; other formats find the row by its number.
struct RowPlace {
  int64_t row = 0;
  uint64_t offset = 0;
};

class Rows {
public:
  virtual ~Rows() = default;
  // Returns the next document, valid until the next call; false at the end. For kJsonLines it is
  // the row as it is. A null is an empty document.
  virtual Result<bool> next(std::string_view& text) = 0;
  virtual RowPlace place() const = 0; // place after the document that next() gave
  virtual double part() const = 0;    // fraction of the file that was read, 0 to 1
};

struct RowsOptions {
  std::string name; // for errors
  Format format = Format::kParquet;
  Compression compression = Compression::kNone;
  std::string column = "text";
  bool paragraphs = false; // for kText: a document ends at blank lines
  int64_t min_document_bytes = 0;
};

// `source` must outlive the rows. Reads as much as it needs to find `from`.
Result<std::unique_ptr<Rows>> open_rows(ByteSource& source, const RowsOptions& options,
                                        RowPlace from);

// The documents of a synthetic set: fetch/synthetic.h.
Result<std::unique_ptr<Rows>> open_synthetic(const std::string& name, RowPlace from);

// The values of a Parquet file's string column. Fails with kUnsupported in a build without Arrow.
Result<std::unique_ptr<Rows>> open_parquet(ByteSource& source, const RowsOptions& options,
                                           RowPlace from);
bool can_parquet();

} // namespace nsa::fetch
