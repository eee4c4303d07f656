#include "common/dataset/split_pattern.h"

#ifdef NSA_HAVE_PCRE2

#include "common/base/printable.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <limits>
#include <pcre2.h>
#include <stdexcept>

namespace nsa::dataset {

namespace {

// Each thread has its own data, because a match writes into it.
pcre2_match_data* match_data() {
  struct Free {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  thread_local const std::unique_ptr<pcre2_match_data, Free> data(
      pcre2_match_data_create(1, nullptr));
  return data.get();
}

// The context has the largest limits, so that a text which needs more steps takes longer and gets
// the same pieces.
pcre2_match_context* match_context() {
  static pcre2_match_context* const context = [] {
    pcre2_match_context* made = pcre2_match_context_create(nullptr);
    pcre2_set_match_limit(made, std::numeric_limits<uint32_t>::max());
    pcre2_set_depth_limit(made, std::numeric_limits<uint32_t>::max());
    pcre2_set_heap_limit(made, std::numeric_limits<uint32_t>::max());
    return made;
  }();
  return context;
}

std::string message_of(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

} // namespace

Result<SplitPattern> SplitPattern::make(const std::string& pattern, bool literal) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options = literal ? PCRE2_LITERAL | PCRE2_UTF : PCRE2_UTF | PCRE2_UCP;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                   options, &error, &offset, nullptr);
  if (code == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "the pattern " + printable(pattern.substr(0, 60)) +
                                                 " is wrong at byte " + std::to_string(offset) +
                                                 ": " + message_of(error));
  }
  (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); // on failure the pattern is interpreted
  SplitPattern made;
  made.code_ = {code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); }};
  return made;
}

std::optional<SplitPattern::Match> SplitPattern::find(std::string_view text, size_t at) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  uint32_t options = PCRE2_NO_UTF_CHECK; // the check would read all of the text at each match
  int found = pcre2_match(code, subject, text.size(), at, options, match_data(), match_context());
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    options |= PCRE2_NO_JIT;
    found = pcre2_match(code, subject, text.size(), at, options, match_data(), match_context());
  }
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) // out of memory, or four billion steps for one match
    throw std::runtime_error("PCRE2 gives up: " + message_of(found));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match_data());
  return Match{ends[0], ends[1]};
}

} // namespace nsa::dataset

#else

namespace nsa::dataset {

Result<SplitPattern> SplitPattern::make(const std::string&, bool) {
  return fail(ErrorCode::kUnsupported,
              "the tokenizer cuts text by a regular expression, and this "
              "build has no PCRE2",
              "install libpcre2-dev and build again");
}

std::optional<SplitPattern::Match> SplitPattern::find(std::string_view, size_t) const {
  return std::nullopt;
}

} // namespace nsa::dataset

#endif
