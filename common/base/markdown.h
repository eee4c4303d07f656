// Text for pages in docs/ that programs write. No I/O.
#pragma once

#include <string>
#include <string_view>

namespace nsa {

// Breaks the lines of paragraphs and lists in `page` at spaces, so that none has more than `width`
// characters where a space allows it. Tables, headings and code blocks stay unchanged.
std::string wrap_markdown(std::string_view page, size_t width = 118);

} // namespace nsa
