#include "common/dataset/document.h"

#include "common/base/text.h"

#include <algorithm>

namespace nsa::dataset {

Status DocumentCutter::push(std::string_view bytes) {
  pending_.append(bytes);
  if (cut_ != Cut::kWhole) NSA_TRY(cut_lines());
  if (pending_.size() > kLargestDocument)
    return fail(ErrorCode::kExhausted,
                "the document that begins at line " + std::to_string(document_line_) +
                    " is larger than " + format_bytes(kLargestDocument),
                cut_ == Cut::kWhole ? "cut the text at blank lines: --documents paragraph"
                                    : "cut it into smaller ones");
  return {};
}

Status DocumentCutter::cut_lines() {
  for (size_t end; (end = pending_.find('\n', searched_)) != std::string::npos;) {
    const std::string_view line = std::string_view(pending_).substr(scanned_, end - scanned_);
    if (cut_ == Cut::kLines) {
      NSA_TRY(emit_until(end));
      document_ = end + 1;
      document_line_ = line_ + 1;
    } else {
      const bool blank = line.find_first_not_of(" \t\r\f\v") == line.npos;
      if (!blank && after_blank_ && has_text_ && scanned_ - document_ >= min_bytes_) {
        NSA_TRY(emit_until(scanned_));
        document_ = scanned_;
        document_line_ = line_;
        has_text_ = false;
      }
      has_text_ = has_text_ || !blank;
      after_blank_ = blank;
    }
    scanned_ = searched_ = end + 1;
    ++line_;
  }
  searched_ = pending_.size();
  pending_.erase(0, document_); // erased once for each push, so that a long stream takes linear
                                // time
  scanned_ -= document_;
  searched_ -= document_;
  document_ = 0;
  return {};
}

Status DocumentCutter::finish() {
  if (cut_ == Cut::kParagraphs && scanned_ < pending_.size()) {
    // A last line without a newline may begin a new document.
    pending_.push_back('\n');
    NSA_TRY(cut_lines());
    pending_.pop_back();
  }
  const bool something = document_ < pending_.size();
  return something ? emit_until(pending_.size()) : Status{};
}

Status DocumentCutter::emit_until(size_t end) {
  std::string_view text = std::string_view(pending_).substr(document_, end - document_);
  if (first_ && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  first_ = false;
  return emit_(text, document_line_);
}

} // namespace nsa::dataset
