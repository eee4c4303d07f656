// A regular expression that cuts text into pieces, as in Hugging Face's Split: PCRE2 with Unicode
// classes. A build without PCRE2 rejects every pattern. Immutable after it is made, so any thread
// may match.
#pragma once

#include "common/base/result.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace nsa::dataset {

class SplitPattern {
public:
  struct Match {
    size_t begin = 0, end = 0; // equal if the expression only looks ahead or behind
  };

  // `literal` matches the pattern as plain text. Errors: kInvalidArgument says where the expression
  // is wrong; kUnsupported if this build has no PCRE2.
  static Result<SplitPattern> make(const std::string& pattern, bool literal);

  // Returns the first match from `at` on. The text is UTF-8, and `at` is the start of a character
  // or the end of the text.
  std::optional<Match> find(std::string_view text, size_t at) const;

private:
  std::shared_ptr<void> code_;
};

} // namespace nsa::dataset
