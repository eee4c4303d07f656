// Walks over the text of one JSON object without making a tree of it: a run of a million steps has
// a gigabyte of records. It takes what parse_json() takes as an object, except that it looks
// neither at UTF-8 nor at the size of numbers. The visitor is told of each member that lies in no
// array:
//
//   void begin(std::string_view path);              // "phase_seconds.forward"; its value follows
//   bool number(std::string_view text);             // false: the scan has failed
//   void text(std::string_view text, bool escaped); // escaped: `text` is not what it means
//
// kPlain takes no more than what ranks write: ASCII without spaces, escapes and arrays, and names
// in order, so that none is there twice. Pure.
#pragma once

#include <string>
#include <string_view>

namespace nsa {

enum class JsonForm { kAny, kPlain };

template <class Visitor, JsonForm Form = JsonForm::kAny> class JsonScanner {
public:
  JsonScanner(std::string_view text, Visitor& visitor)
      : at_(text.data()), end_(text.data() + text.size()), visitor_(visitor) {}

  // Whether the whole text is an object.
  bool scan() {
    skip_space();
    if (!object(0)) return false;
    skip_space();
    return at_ == end_;
  }

private:
  static constexpr int kMaxDepth = 64; // as JsonLimits
  static constexpr bool kIsPlain = Form == JsonForm::kPlain;

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

  // At the opening quote.
  bool string(std::string_view& text, bool& escaped) {
    if (!take('"')) return false;
    const char* begin = at_;
    escaped = false;
    for (; at_ < end_ && *at_ != '"'; ++at_) {
      const auto c = static_cast<unsigned char>(*at_);
      if (c < 0x20 || (kIsPlain && (c > '~' || c == '\\'))) return false;
      if (c != '\\') continue;
      escaped = true;
      if (!escape()) return false;
    }
    text = since(begin);
    return take('"');
  }
  // At the backslash; afterwards at its last character.
  bool escape() {
    ++at_;
    if (peek() != 'u') return std::string_view("\"\\/bfnrt").find(peek()) != std::string_view::npos;
    for (int digit = 0; digit < 4; ++digit) {
      ++at_;
      const char c = peek();
      if (!is_digit(c) && !(c >= 'a' && c <= 'f') && !(c >= 'A' && c <= 'F')) return false;
    }
    return true;
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
    std::string_view before;
    do {
      skip_space();
      std::string_view name;
      bool escaped = false;
      if (!string(name, escaped)) return false;
      if (kIsPlain && before.data() != nullptr && name <= before) return false;
      before = name;
      if (depth > 0) path_.push_back('.');
      path_.append(name);
      skip_space();
      if (!take(':')) return false;
      skip_space();
      if (arrays_ == 0) visitor_.begin(path_);
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
    case '"': {
      std::string_view text;
      bool escaped = false;
      if (!string(text, escaped)) return false;
      if (arrays_ == 0) visitor_.text(text, escaped);
      return true;
    }
    case 't':
      return word("true");
    case 'f':
      return word("false");
    case 'n':
      return word("null");
    default: {
      std::string_view text;
      return number(text) && (arrays_ > 0 || visitor_.number(text));
    }
    }
  }

  const char* at_;
  const char* end_;
  Visitor& visitor_;
  std::string path_;
  int arrays_ = 0; // around this place
};

} // namespace nsa
