// Scans the text of one JSON object without building a tree. A run of a million steps has a
// gigabyte of records, and a text source has more. The scanner accepts what parse_json() accepts as
// an object, but checks neither UTF-8 nor the size of numbers. It reports to the visitor each
// member outside arrays, and the numbers in arrays:
//
//   std::string* begin(std::string_view path); // Before a value: path "phase_seconds.forward".
//                                              // Returns a buffer for its text, or nullptr.
//   void text();                               // the text has been appended there
//   bool number(std::string_view text);        // false: the scan has failed
//   bool element(std::string_view text);       // a number in an array; false as above
//
// kPlain accepts only what ranks write: ASCII without spaces, escapes and arrays, and names in
// ascending order, so without duplicates. No I/O.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace nsa {

enum class JsonForm { kAny, kPlain };

// Reads an escape of a string; `at` is after its backslash. Appends its meaning in UTF-8 to `out`,
// unless `out` is nullptr. Returns false if it is no escape.
bool unescape(const char*& at, const char* end, std::string* out);

template <class Visitor, JsonForm Form = JsonForm::kAny> class JsonScanner {
public:
  JsonScanner(std::string_view text, Visitor& visitor)
      : at_(text.data()), end_(text.data() + text.size()), visitor_(visitor) {}

  // Returns whether the whole text is an object.
  bool scan() {
    skip_space();
    if (!object(0)) return false;
    skip_space();
    return at_ == end_;
  }

private:
  static constexpr int kMaxDepth = 64; // the same as in JsonLimits
  static constexpr bool kIsPlain = Form == JsonForm::kPlain;
  // Bytes of a string that need no unescaping.
  static constexpr auto kLiteral = [] {
    std::array<bool, 256> literal{};
    for (size_t byte = 0x20; byte < (kIsPlain ? 0x7F : literal.size()); ++byte)
      literal[byte] = byte != '"' && byte != '\\';
    return literal;
  }();

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }

  char peek() const { return at_ < end_ ? *at_ : '\0'; }
  bool take(char c) { return at_ < end_ && *at_ == c ? ++at_, true : false; }
  void skip_space() {
    if constexpr (!kIsPlain)
      while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n'))
        ++at_;
  }
  std::string_view since(const char* begin) const {
    return {begin, static_cast<size_t>(at_ - begin)};
  }

  void skip_literal() {
    const char* at = at_;
    while (at < end_ && kLiteral[static_cast<unsigned char>(*at)])
      ++at;
    at_ = at;
  }
  // Starts at the opening quote. Appends the string's meaning to `out`, unless that is nullptr.
  bool string(std::string* out) {
    if (!take('"')) return false;
    while (true) {
      const char* begin = at_;
      skip_literal();
      if (out != nullptr) out->append(begin, static_cast<size_t>(at_ - begin));
      if (take('"')) return true;
      if (kIsPlain || !take('\\') || !unescape(at_, end_, out)) return false;
    }
  }

  bool digits() {
    if (!is_digit(peek())) return false;
    while (is_digit(peek()))
      ++at_;
    return true;
  }
  bool number(std::string_view& text) {
    const char* begin = at_;
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (take('e') || take('E')) {
      if (!take('+')) take('-');
      if (!digits()) return false;
    }
    text = since(begin);
    return true;
  }

  bool word(std::string_view text) {
    if (!std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  bool array(int depth) {
    if (kIsPlain || depth >= kMaxDepth || !take('[')) return false;
    skip_space();
    if (take(']')) return true;
    ++arrays_;
    into_ = nullptr;
    do {
      skip_space();
      if (!value(depth + 1)) return false;
      skip_space();
    } while (take(','));
    --arrays_;
    return take(']');
  }

  bool object(int depth) {
    if (depth >= kMaxDepth || !take('{')) return false;
    skip_space();
    if (take('}')) return true;
    const size_t outer = path_.size();
    std::string_view before; // kPlain only, whose strings have no escapes
    do {
      skip_space();
      if (depth > 0) path_.push_back('.');
      const char* begin = at_;
      if (!string(&path_)) return false;
      if (const std::string_view name = since(begin); kIsPlain) {
        if (before.data() != nullptr && name <= before) return false;
        before = name;
      }
      skip_space();
      if (!take(':')) return false;
      skip_space();
      if (arrays_ == 0) into_ = visitor_.begin(path_);
      if (!value(depth + 1)) return false;
      path_.resize(outer);
      skip_space();
    } while (take(','));
    return take('}');
  }

  bool value(int depth) {
    switch (peek()) {
    case '{':
      return object(depth);
    case '[':
      return array(depth);
    case '"':
      if (!string(into_)) return false;
      if (into_ != nullptr) visitor_.text();
      return true;
    case 't':
      return word("true");
    case 'f':
      return word("false");
    case 'n':
      return word("null");
    default: {
      std::string_view text;
      if (!number(text)) return false;
      return arrays_ > 0 ? visitor_.element(text) : visitor_.number(text);
    }
    }
  }

  const char* at_;
  const char* end_;
  Visitor& visitor_;
  std::string path_;
  std::string* into_ = nullptr; // buffer for the text of the current member
  int arrays_ = 0;              // number of enclosing arrays
};

} // namespace nsa
