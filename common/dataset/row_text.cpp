#include "common/dataset/row_text.h"

#include "common/base/json_scanner.h"

namespace nsa::dataset {
namespace {

constexpr size_t kLongestNumber = 300; // digits without an exponent that a double can hold

class TextOfKey {
public:
  TextOfKey(std::string_view key, std::string& text) : key_(key), text_(text) {}

  // The last one of repeated names counts, as in a tree.
  std::string* begin(std::string_view path) {
    if (path != key_) return nullptr;
    found_ = false;
    text_.clear();
    return &text_;
  }
  void text() { found_ = true; }
  bool number(std::string_view text) { return element(text); }
  bool element(std::string_view text) {
    return text.size() <= kLongestNumber && text.find_first_of("eE") == text.npos;
  }
  bool found() const { return found_; }

private:
  std::string_view key_;
  std::string& text_;
  bool found_ = false;
};

} // namespace

bool read_row_text(std::string_view row, std::string_view key, std::string& text) {
  if (key.find('.') != key.npos) return false; // a nested path may look the same
  TextOfKey reader(key, text);
  return JsonScanner(row, reader).scan() && reader.found();
}

} // namespace nsa::dataset
