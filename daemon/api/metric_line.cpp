#include "daemon/api/metric_line.h"

#include <charconv>
#include <limits>

namespace nsa::api {

namespace {

constexpr int kMaxDepth = 64; // as JsonLimits

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Walk {
public:
  Walk(std::string_view text, const std::vector<std::string>& names, MetricLine& line)
      : at_(text.data()), end_(text.data() + text.size()), names_(names), line_(line) {}

  bool whole() {
    skip_space();
    if (peek() != '{' || !object(0)) return false;
    skip_space();
    return at_ == end_;
  }

private:
  char peek() const { return at_ < end_ ? *at_ : '\0'; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void skip_space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n'))
      ++at_;
  }

  // At the opening quote. `escaped`: `text` is not what the string means.
  bool string(std::string_view& text, bool& escaped) {
    if (!take('"')) return false;
    const char* begin = at_;
    escaped = false;
    for (; at_ < end_ && *at_ != '"'; ++at_) {
      if (static_cast<unsigned char>(*at_) < 0x20) return false;
      if (*at_ != '\\') continue;
      escaped = true;
      if (!escape()) return false;
    }
    text = {begin, static_cast<size_t>(at_ - begin)};
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
  bool number(double* into) {
    const char* begin = at_;
    take('-');
    if (!take('0') && !digits()) return false;
    if (take('.') && !digits()) return false;
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (!take('+')) take('-');
      if (!digits()) return false;
    }
    return !into || std::from_chars(begin, at_, *into).ec == std::errc{};
  }

  bool word(std::string_view text) {
    if (!std::string_view(at_, static_cast<size_t>(end_ - at_)).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  bool array(int depth) {
    if (depth >= kMaxDepth || !take('[')) return false;
    skip_space();
    if (take(']')) return true;
    do {
      skip_space();
      ++arrays_;
      const bool fine = value(depth + 1, nullptr, false);
      --arrays_;
      if (!fine) return false;
      skip_space();
    } while (take(','));
    return take(']');
  }

  bool object(int depth) {
    if (depth >= kMaxDepth || !take('{')) return false;
    skip_space();
    if (take('}')) return true;
    const size_t outer = path_.size();
    do {
      skip_space();
      std::string_view key;
      bool escaped = false;
      if (!string(key, escaped)) return false;
      if (outer > 0) path_.push_back('.');
      path_.append(key);
      skip_space();
      if (!take(':')) return false;
      skip_space();
      if (depth == 0 && key == "kind") line_.has_kind = true;
      if (!value(depth + 1, wanted(), depth == 0)) return false;
      path_.resize(outer);
      skip_space();
    } while (take(','));
    return take('}');
  }

  // Members of arrays have no names, so nothing in them is wanted.
  bool value(int depth, double* into, bool is_member) {
    if (into) *into = std::numeric_limits<double>::quiet_NaN();
    switch (peek()) {
    case '{':
      return object(depth);
    case '[':
      return array(depth);
    case '"': {
      std::string_view text;
      bool escaped = false;
      if (!string(text, escaped)) return false;
      if (is_member && !escaped && path_ == "kind") line_.kind = text;
      if (is_member && !escaped && path_ == "time") line_.time = text;
      return true;
    }
    case 't':
      return word("true");
    case 'f':
      return word("false");
    case 'n':
      return word("null");
    default:
      return number(into);
    }
  }

  double* wanted() {
    if (arrays_ > 0) return nullptr;
    for (size_t i = 0; i < names_.size(); ++i)
      if (names_[i] == path_) return &line_.values[i];
    return nullptr;
  }

  const char* at_;
  const char* end_;
  const std::vector<std::string>& names_;
  MetricLine& line_;
  std::string path_; // "phase_seconds.forward"
  int arrays_ = 0;   // around this place
};

} // namespace

bool read_metric_line(std::string_view text, const std::vector<std::string>& names,
                      MetricLine& line) {
  line.kind.clear();
  line.time.clear();
  line.has_kind = false;
  line.values.assign(names.size(), std::numeric_limits<double>::quiet_NaN());
  return Walk(text, names, line).whole();
}

} // namespace nsa::api
