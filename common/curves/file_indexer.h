// Indexes a metrics.jsonl that has none (curve_index.h): a rank does so with what an earlier
// attempt left, nsad with runs of older builds. Reads a piece at a time, some 130 MB a second. One
// thread; blocking.
#pragma once

#include "common/curves/curve_index.h"

#include <functional>
#include <stop_token>

namespace nsa::curves {

// The end of a segment's text, as much of it as is checked.
class CheckedTail {
public:
  void add(std::string_view line);
  void clear() { bytes_.clear(); }
  // The segment's lines with the check of this tail.
  std::string lines_of(const SegmentBuilder& segment) const;

private:
  std::string bytes_;
};

// At most `size` bytes from there; fewer at the end of the file, or where it cannot be read.
std::string read_piece(int fd, int64_t from, size_t size);

// Cuts `segments` behind the last one that this file, of `size` bytes, has as it was indexed.
void keep_fitting(std::vector<Segment>& segments, int metrics, int64_t size);

// Whole segments from `from` to `size`; `write` gets the lines of each, and says whether to go on.
// Gives where they end: a last line without its end is left out. Nothing: stopped, unreadable, or a
// line too long for any record.
std::optional<int64_t> index_file(int metrics, int64_t from, int64_t size,
                                  const std::stop_token& stop,
                                  const std::function<bool(const std::string& lines)>& write);

} // namespace nsa::curves
