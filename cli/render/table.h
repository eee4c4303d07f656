// Tables for people: columns padded to the widest cell (in terminal columns, not bytes), two blanks
// between, the last one not padded. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace nsa::render {

// Columns a text takes in a terminal: code points, without colour sequences and combining marks.
int display_width(std::string_view text);

// Cut to `width` columns with "…" ("..." in ASCII); colour sequences are kept whole. Width 0: as
// is.
std::string elide(std::string_view text, int width, bool unicode = true);

class Table {
public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void right(size_t column); // numbers
  // How the table becomes narrower, in the order of these calls and only as far as it must: a
  // column is cut down to `width`, or left out (0).
  void give_way(size_t column, int width) { ways_.emplace_back(column, width); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  // Lines of at most `width` columns; 0: whole.
  std::string print(int width, bool unicode = true) const;

private:
  std::vector<int> natural_widths() const;
  // Widths that fit, -1 for columns that are left out.
  std::vector<int> fitting_widths(int width) const;

  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<bool> right_;
  std::vector<std::pair<size_t, int>> ways_;
};

} // namespace nsa::render
