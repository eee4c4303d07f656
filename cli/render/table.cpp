#include "cli/render/table.h"

#include <algorithm>

namespace nsa::render {

namespace {
constexpr int kGap = 2; // between columns

// Returns the length of the colour sequence that starts here, or 0 if there is none.
size_t escape_length(std::string_view text, size_t at) {
  if (text[at] != '\033' || at + 1 >= text.size() || text[at + 1] != '[') return 0;
  const size_t end = text.find('m', at);
  return end == std::string_view::npos ? 0 : end + 1 - at;
}

size_t code_point_length(std::string_view text, size_t at) {
  size_t length = 1;
  while (at + length < text.size() &&
         (static_cast<unsigned char>(text[at + length]) & 0xC0) == 0x80)
    ++length;
  return length;
}

void append_cell(std::string& line, const std::string& cell, int width, bool right, bool last) {
  const int padding = std::max(0, width - display_width(cell));
  if (right) line.append(static_cast<size_t>(padding), ' ');
  line += cell;
  if (!right && !last) line.append(static_cast<size_t>(padding), ' ');
}
} // namespace

int display_width(std::string_view text) {
  int width = 0;
  for (size_t at = 0; at < text.size();) {
    if (const size_t escape = escape_length(text, at)) {
      at += escape;
      continue;
    }
    at += code_point_length(text, at);
    ++width;
  }
  return width;
}

std::string elide(std::string_view text, int width, bool unicode) {
  if (width <= 0 || display_width(text) <= width) return std::string(text);
  const std::string_view mark = unicode ? "…" : "...";
  const int keep = width - display_width(mark);
  std::string cut;
  int used = 0;
  bool marked = false;
  for (size_t at = 0; at < text.size();) {
    if (const size_t escape = escape_length(text, at)) { // the end of a colour must stay
      cut += text.substr(at, escape);
      at += escape;
      continue;
    }
    const size_t length = code_point_length(text, at);
    if (used < keep) {
      cut += text.substr(at, length);
      ++used;
    } else if (!marked && keep >= 0) {
      cut += mark;
      marked = true;
    }
    at += length;
  }
  return cut;
}

void Table::right(size_t column) {
  right_.resize(std::max(right_.size(), column + 1));
  right_[column] = true;
}

std::vector<int> Table::natural_widths() const {
  std::vector<int> widths(header_.size());
  for (size_t i = 0; i < header_.size(); ++i) {
    widths[i] = display_width(header_[i]);
    for (const auto& row : rows_)
      if (i < row.size()) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  return widths;
}

std::vector<int> Table::fitting_widths(int width) const {
  std::vector<int> widths = natural_widths();
  const auto total = [&] {
    int sum = -kGap;
    for (const int each : widths)
      if (each >= 0) sum += each + kGap;
    return sum;
  };
  for (const auto& [column, least] : ways_) {
    const int excess = total() - width;
    if (width <= 0 || excess <= 0) break;
    int& own = widths[column];
    own = least == 0 ? -1 : std::min(own, std::max(least, own - excess));
  }
  return widths;
}

std::string Table::print(int width, bool unicode) const {
  const std::vector<int> widths = fitting_widths(width);
  std::string text;
  const auto print_row = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < row.size() && i < widths.size(); ++i) {
      if (widths[i] < 0) continue;
      if (!line.empty()) line += std::string(kGap, ' ');
      append_cell(line, elide(row[i], widths[i], unicode), widths[i],
                  i < right_.size() && right_[i], i + 1 == row.size());
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += elide(line, width, unicode) + "\n";
  };
  print_row(header_);
  for (const auto& row : rows_)
    print_row(row);
  return text;
}

} // namespace nsa::render
