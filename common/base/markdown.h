// Text of the pages in docs/ that programs write. Pure.
#pragma once

#include <string>
#include <string_view>

namespace nsa {

// `page` with the lines of its paragraphs and lists broken at spaces, so that none has more than
// `width` characters where a space allows it. Tables, headings and code blocks stay as they are.
std::string wrap_markdown(std::string_view page, size_t width = 118);

} // namespace nsa
