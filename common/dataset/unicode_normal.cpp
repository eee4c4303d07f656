#include "common/dataset/unicode_normal.h"

#ifdef NSA_HAVE_UTF8PROC

#include "common/dataset/unicode.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <utf8proc.h>

namespace nsa::dataset {

namespace {

utf8proc_option_t options_of(NormalForm form) {
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE |
                                        (composed ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

// `text` is UTF-8.
void append_normalised(std::string_view text, NormalForm form, std::string& out) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &made, options_of(form));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(made, &std::free);
  if (bytes < 0) throw std::bad_alloc(); // the only other error is invalid UTF-8
  out.append(reinterpret_cast<const char*>(made), static_cast<size_t>(bytes));
}

} // namespace

bool can_normalise() {
  return true;
}

std::string normalised(std::string_view text, NormalForm form) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, find_invalid_utf8(text));
    append_normalised(valid, form, out);
    text.remove_prefix(valid.size());
    for (; !text.empty() && decode_utf8(text, 0).bytes == 0; text.remove_prefix(1))
      out.push_back(text[0]);
  }
  return out;
}

} // namespace nsa::dataset

#else

namespace nsa::dataset {

bool can_normalise() {
  return false;
}

std::string normalised(std::string_view text, NormalForm) {
  return std::string(text);
}

} // namespace nsa::dataset

#endif
