#include "common/base/markdown.h"

#include "common/base/text.h"

#include <algorithm>

namespace nsa {

namespace {

// Counts characters, not bytes: UTF-8 continuation bytes do not count.
size_t characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string wrap_line(std::string_view line, size_t width) {
  const std::string indent = line.starts_with("- ") ? "  " : "";
  std::string out, current;
  for (const std::string& word : split(line, ' ')) {
    if (!current.empty() && characters(current) + 1 + characters(word) > width) {
      out += current + "\n";
      current = indent + word;
    } else {
      current += (current.empty() ? "" : " ") + word;
    }
  }
  return out + current;
}

} // namespace

std::string wrap_markdown(std::string_view page, size_t width) {
  std::vector<std::string> lines = split(page, '\n');
  bool code = false;
  for (std::string& line : lines) {
    const bool fence = line.starts_with("```");
    const bool fixed = code || fence || line.starts_with("|") || line.starts_with("#");
    if (!fixed && characters(line) > width) line = wrap_line(line, width);
    code = code != fence;
  }
  return join(lines, "\n");
}

} // namespace nsa
