// Tables for people. Columns are padded to the widest cell, in terminal columns and not in bytes,
// with two blanks between them. The last column is not padded. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nsa::render {

// Returns the terminal columns of a text: its code points, without colour sequences and combining
// marks.
int display_width(std::string_view text);

// Cuts a text to `width` columns with "…" ("..." in ASCII). Colour sequences stay whole. Width 0
// returns the text unchanged.
std::string elide(std::string_view text, int width, bool unicode = true);

class Table {
public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void right(size_t column); // aligns a column of numbers
  // Says how the table becomes narrower. The steps apply in the order of these calls, and only as
  // many as needed. Each cuts a column to `width`, or removes it if `width` is 0.
  void give_way(size_t column, int width) { ways_.emplace_back(column, width); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  // Returns lines of at most `width` columns; 0 means no limit.
  std::string print(int width, bool unicode = true) const;

private:
  std::vector<int> natural_widths() const;
  // Returns widths that fit, with -1 for removed columns.
  std::vector<int> fitting_widths(int width) const;

  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<bool> right_;
  std::vector<std::pair<size_t, int>> ways_;
};

} // namespace nsa::render
