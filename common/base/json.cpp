#include "common/base/json.h"

#include "common/base/text.h"

#include <algorithm>

namespace nsa {

namespace {

using nlohmann::json;

// Returns the position of an array or object that is nested deeper than `limit`. It is exact up to
// the first syntax error, where the parser stops anyway.
size_t find_too_deep(std::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return at;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::string_view::npos;
}

tl::unexpected<Error> fail_at(std::string_view subject, std::string_view text, size_t at,
                              const std::string& what) {
  const std::string_view before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t column = before.size() - (before.rfind('\n') + 1); // npos + 1 is 0
  return fail(ErrorCode::kCorrupt, std::string(subject) + ", line " + std::to_string(line) +
                                       ", column " + std::to_string(column + 1) + ": " + what);
}

// Ignores all parser events except the error.
struct MistakeFinder {
  size_t position = 0; // bytes read until the error
  std::string reason;

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(int64_t) { return true; }
  bool number_unsigned(uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(std::string&) { return true; }
  bool binary(json::binary_t&) { return true; }
  bool start_object(size_t) { return true; }
  bool key(std::string&) { return true; }
  bool end_object() { return true; }
  bool start_array(size_t) { return true; }
  bool end_array() { return true; }
  bool parse_error(size_t at, const std::string&, const json::exception& exception) {
    position = at;
    reason = reason_of(exception);
    return false;
  }
};

tl::unexpected<Error> syntax_error(std::string_view text, std::string_view subject) {
  MistakeFinder finder;
  json::sax_parse(text.begin(), text.end(), &finder);
  return fail_at(subject, text, finder.position - std::min<size_t>(finder.position, 1),
                 "not JSON: " + finder.reason);
}

Status check_limits(std::string_view text, std::string_view subject, JsonLimits limits) {
  if (text.size() > limits.bytes)
    return fail(ErrorCode::kCorrupt, std::string(subject) + " has " + format_bytes(text.size()) +
                                         ", more than the " + format_bytes(limits.bytes) +
                                         " that it may have");
  if (const size_t at = find_too_deep(text, limits.depth); at != std::string_view::npos)
    return fail_at(subject, text, at,
                   "nested deeper than " + std::to_string(limits.depth) + " levels");
  return {};
}

} // namespace

Result<json> parse_json(std::string_view text, std::string_view subject, JsonLimits limits,
                        const json::parser_callback_t& watch) {
  NSA_TRY(check_limits(text, subject, limits));
  json tree = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (tree.is_discarded()) return syntax_error(text, subject);
  return tree;
}

Status check_json(std::string_view text, std::string_view subject, JsonLimits limits) {
  NSA_TRY(check_limits(text, subject, limits));
  if (!json::accept(text.begin(), text.end())) return syntax_error(text, subject);
  return {};
}

std::string reason_of(const json::exception& exception) {
  std::string_view what = exception.what(); // "[json.exception.parse_error.101] parse error at ..."
  const auto drop_through = [&](std::string_view mark) {
    if (const size_t at = what.find(mark); at != what.npos) what.remove_prefix(at + mark.size());
  };
  drop_through("] ");
  if (what.starts_with("parse error at ")) drop_through(": ");
  // The input that the parser quotes may be long, so it is left out.
  what = what.substr(0, std::min(what.find("; last read: "), what.find(" parsing '")));
  return std::string(what);
}

} // namespace nsa
