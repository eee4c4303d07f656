#include "common/dataset/pretokenize.h"

#include "common/dataset/unicode.h"

namespace nsa::dataset {
namespace {

struct Character {
  CharClass kind;
  size_t bytes;
};

Character character_at(std::string_view text, size_t at) {
  const DecodedChar decoded = decode_utf8(text, at);
  if (decoded.bytes == 0) return {CharClass::kOther, 1};
  return {char_class(decoded.code), static_cast<size_t>(decoded.bytes)};
}

// Returns the bytes of "'s", "'ll" and so on at `at`, which has an apostrophe; 0 if it is no
// contraction.
size_t contraction_length(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at + 1, 2);
  if (rest.empty()) return 0;
  switch (rest[0]) {
  case 's':
  case 't':
  case 'm':
  case 'd':
    return 2;
  default:
    return rest == "re" || rest == "ve" || rest == "ll" ? 3 : 0;
  }
}

// Returns the end of the run of characters of class `kind` from `at` on.
size_t run_end(std::string_view text, size_t at, CharClass kind) {
  while (at < text.size()) {
    const Character next = character_at(text, at);
    if (next.kind != kind) break;
    at += next.bytes;
  }
  return at;
}

// Returns the length of white space up to the next word. The last character of a run is left,
// unless the text ends or it is the only one. A space then joins the next word; any other character
// is a separate piece.
size_t space_length(std::string_view text, size_t at) {
  size_t end = at, last = at;
  while (end < text.size()) {
    const Character next = character_at(text, end);
    if (next.kind != CharClass::kSpace) break;
    last = end;
    end += next.bytes;
  }
  return end == text.size() || last == at ? end - at : last - at;
}

} // namespace

size_t piece_length(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    if (const size_t length = contraction_length(text, at)) return length;
  }
  size_t start = at;
  if (text[at] == ' ' && at + 1 < text.size()) start = at + 1;
  const Character first = character_at(text, start);
  if (first.kind == CharClass::kSpace) return space_length(text, at);
  return run_end(text, start + first.bytes, first.kind) - at;
}

} // namespace nsa::dataset
