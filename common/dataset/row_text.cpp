#include "common/dataset/row_text.h"

#include <array>
#include <cstdint>

namespace nsa::dataset {
namespace {

constexpr int kDepth = 16;             // of arrays and objects within each other
constexpr size_t kLongestNumber = 300; // a double holds each that is no longer

// Bytes of a string that stand for themselves.
constexpr auto kPlain = [] {
  std::array<bool, 256> plain{};
  for (size_t byte = 0x20; byte < plain.size(); ++byte)
    plain[byte] = byte != '"' && byte != '\\';
  return plain;
}();

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

void append_utf8(uint32_t code, std::string& out) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  if (code < 0x800) {
    out += static_cast<char>(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      out += static_cast<char>(0xE0 | code >> 12);
    } else {
      out += static_cast<char>(0xF0 | code >> 18);
      out += static_cast<char>(0x80 | (code >> 12 & 0x3F));
    }
    out += static_cast<char>(0x80 | (code >> 6 & 0x3F));
  }
  out += static_cast<char>(0x80 | (code & 0x3F));
}

// Each function returns false where the text is not what it reads; at_ is then anywhere.
class RowReader {
public:
  RowReader(std::string_view row, std::string_view key, std::string& text)
      : at_(row.data()), end_(row.data() + row.size()), key_(key), text_(text) {}

  // Of a name that is there twice the last one counts, as in a tree.
  bool read() {
    bool found = false;
    skip_spaces();
    if (!take('{')) return false;
    do {
      std::string_view name;
      if (!member_name(name)) return false;
      if (name == key_) {
        text_.clear();
        found = true;
        if (!string(&text_)) return false;
      } else if (!value(1)) {
        return false;
      }
      skip_spaces();
    } while (take(','));
    if (!take('}')) return false;
    skip_spaces();
    return found && at_ == end_;
  }

private:
  bool take(char c) { return at_ < end_ && *at_ == c ? ++at_, true : false; }

  void skip_spaces() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r'))
      ++at_;
  }
  const char* skip_plain() {
    while (at_ < end_ && kPlain[static_cast<unsigned char>(*at_)])
      ++at_;
    return at_;
  }

  // "name": and the spaces around it.
  bool member_name(std::string_view& name) {
    skip_spaces();
    if (!take('"')) return false;
    const char* begin = at_;
    name = {begin, skip_plain()};
    if (!take('"')) return false;
    skip_spaces();
    if (!take(':')) return false;
    skip_spaces();
    return true;
  }

  bool string(std::string* out) {
    if (!take('"')) return false;
    while (true) {
      const char* begin = at_;
      skip_plain();
      if (out) out->append(begin, at_);
      if (take('"')) return true;
      if (!take('\\') || !escape(out)) return false;
    }
  }
  bool escape(std::string* out) {
    if (at_ == end_) return false;
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char name = *at_++;
    if (name == 'u') return escaped_character(out);
    const size_t index = kNames.find(name);
    if (index == kNames.npos) return false;
    if (out) *out += kMeanings[index];
    return true;
  }
  bool escaped_character(std::string* out) {
    uint32_t code = 0, low = 0;
    if (!four_digits(code)) return false;
    if (code >= 0xD800 && code < 0xE000) { // UTF-16: a pair, or no character at all
      if (code >= 0xDC00 || !take('\\') || !take('u') || !four_digits(low)) return false;
      if (low < 0xDC00 || low >= 0xE000) return false;
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (out) append_utf8(code, *out);
    return true;
  }
  bool four_digits(uint32_t& number) {
    if (end_ - at_ < 4) return false;
    for (const char* last = at_ + 4; at_ < last; ++at_) {
      const char lower = static_cast<char>(*at_ | 0x20);
      if (is_digit(*at_))
        number = number << 4 | static_cast<uint32_t>(*at_ - '0');
      else if (lower >= 'a' && lower <= 'f')
        number = number << 4 | static_cast<uint32_t>(lower - 'a' + 10);
      else
        return false;
    }
    return true;
  }

  bool value(int depth) {
    if (at_ == end_ || depth > kDepth) return false;
    switch (*at_) {
    case '"':
      return string(nullptr);
    case '{':
    case '[':
      return members(depth);
    case 't':
      return word("true");
    case 'f':
      return word("false");
    case 'n':
      return word("null");
    default:
      return number();
    }
  }
  bool members(int depth) {
    const bool object = *at_++ == '{';
    const char close = object ? '}' : ']';
    skip_spaces();
    if (take(close)) return true;
    do {
      std::string_view name;
      skip_spaces();
      if (object && !member_name(name)) return false;
      if (!value(depth + 1)) return false;
      skip_spaces();
    } while (take(','));
    return take(close);
  }
  bool word(std::string_view expected) {
    if (!std::string_view(at_, end_).starts_with(expected)) return false;
    at_ += expected.size();
    return true;
  }
  bool digits() {
    const char* begin = at_;
    while (at_ < end_ && is_digit(*at_))
      ++at_;
    return at_ > begin;
  }
  bool number() {
    const char* begin = at_;
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    const bool exponent = at_ < end_ && (*at_ == 'e' || *at_ == 'E');
    return !exponent && static_cast<size_t>(at_ - begin) <= kLongestNumber;
  }

  const char* at_;
  const char* end_;
  std::string_view key_;
  std::string& text_;
};

} // namespace

bool read_row_text(std::string_view row, std::string_view key, std::string& text) {
  return RowReader(row, key, text).read();
}

} // namespace nsa::dataset
