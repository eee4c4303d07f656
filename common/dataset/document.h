// Cuts a stream of bytes into documents, however the stream arrives. Pure; one thread.
//
// A file of plain text is a document, or is cut at blank lines: a document then ends with the blank
// lines after it, so that the documents of a file, joined, are the file. A row of JSON lines is a
// document, without its line end. A UTF-8 byte order mark at the start of a file is dropped.
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
  // `line` is where the document begins, from 1.
  using Emit = std::function<Status(std::string_view text, int64_t line)>;

  // min_bytes: a blank line ends a document only when it has that many bytes (kParagraphs).
  DocumentCutter(Cut cut, int64_t min_bytes, Emit emit)
      : cut_(cut), min_bytes_(static_cast<size_t>(min_bytes)), emit_(std::move(emit)) {}

  // kExhausted when a document grows past kLargestDocument; errors of emit pass through.
  Status push(std::string_view bytes);
  Status finish(); // what is left is the last document, if anything is

private:
  Status cut_lines();
  Status emit_until(size_t end);

  Cut cut_;
  size_t min_bytes_;
  Emit emit_;
  std::string pending_;      // the document being collected, and what follows it
  size_t scanned_ = 0;       // start of the first line in pending_ that was not looked at yet
  size_t searched_ = 0;      // up to here that line has no end
  size_t document_ = 0;      // where the current document begins in pending_
  bool has_text_ = false;    // the current document has a line that is not blank
  bool after_blank_ = false; // the last line was blank
  bool first_ = true;
  int64_t document_line_ = 1;
  int64_t line_ = 1; // number of the line at scanned_
};

} // namespace nsa::dataset
