// A regular expression that cuts text into pieces, as Hugging Face's Split has one: PCRE2 with
// Unicode classes. A build without PCRE2 refuses every pattern. Immutable after it is made: any
// thread may match.
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
    size_t begin = 0, end = 0; // equal, where the expression only looks ahead or behind
  };

  // `literal`: the text itself, no expression. kInvalidArgument says where the expression is wrong;
  // kUnsupported, that this build has no PCRE2.
  static Result<SplitPattern> make(const std::string& pattern, bool literal);

  // The first match from `at` on. The text is UTF-8, and a character begins at `at` or the text
  // ends.
  std::optional<Match> find(std::string_view text, size_t at) const;

private:
  std::shared_ptr<void> code_;
};

} // namespace nsa::dataset
