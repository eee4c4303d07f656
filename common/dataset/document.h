// Cuts a byte stream into documents, independent of how the stream is split. No I/O; use it from
// one thread.
//
// A plain-text file is one document, or is cut at blank lines. A document then ends with the blank
// lines after it, so that the concatenated documents are the file. A row of JSON lines is a
// document, without its newline. A UTF-8 byte order mark at the start of a file is dropped.
#pragma once

#include "common/base/result.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace nsa::dataset {

enum class Cut { kWhole, kParagraphs, kLines };

inline constexpr size_t kLargestDocument = size_t{1} << 30;

class DocumentCutter {
public:
  // `line` is the line at which the document begins, from 1.
  using Emit = std::function<Status(std::string_view text, int64_t line)>;

  // A blank line ends a document only if it has at least `min_bytes` bytes (kParagraphs).
  DocumentCutter(Cut cut, int64_t min_bytes, Emit emit)
      : cut_(cut), min_bytes_(static_cast<size_t>(min_bytes)), emit_(std::move(emit)) {}

  // Error: kExhausted if a document exceeds kLargestDocument. Errors of `emit` are returned.
  Status push(std::string_view bytes);
  Status finish(); // emits the rest as the last document, unless it is empty

private:
  Status cut_lines();
  Status emit_until(size_t end);

  Cut cut_;
  size_t min_bytes_;
  Emit emit_;
  std::string pending_;      // the current document and the data after it
  size_t scanned_ = 0;       // start of the first line in pending_ that is not scanned yet
  size_t searched_ = 0;      // up to here that line has no newline
  size_t document_ = 0;      // start of the current document in pending_
  bool has_text_ = false;    // the current document has a non-blank line
  bool after_blank_ = false; // the last line was blank
  bool first_ = true;
  int64_t document_line_ = 1;
  int64_t line_ = 1; // number of the line at scanned_
};

} // namespace nsa::dataset
