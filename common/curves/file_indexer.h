// Indexes a metrics.jsonl without an index (curve_index.h): a rank does it for records of an
// earlier attempt, nsad for runs of older builds. It reads one piece at a time, about 130 MB/s.
// Blocking; use it from one thread.
#pragma once

#include "common/curves/curve_index.h"

#include <functional>
#include <stop_token>

namespace nsa::curves {

// The last bytes of a segment, which `check` covers.
class CheckedTail {
public:
  void add(std::string_view line);
  void clear() { bytes_.clear(); }
  // Returns the segment's lines with the check of these bytes.
  std::string lines_of(const SegmentBuilder& segment) const;

private:
  std::string bytes_;
};

// Returns at most `size` bytes from `from`; fewer at the end of the file or after a read error.
std::string read_piece(int fd, int64_t from, size_t size);

// Keeps the segments up to the last one that matches this file of `size` bytes.
void keep_fitting(std::vector<Segment>& segments, int metrics, int64_t size);

// Indexes complete segments from `from` to `size`. `write` gets the lines of each, and returns
// whether to continue. Returns the end of the last segment, without an unterminated last line.
// Returns nullopt if it was stopped, could not read, or found a line too long for a record.
std::optional<int64_t> index_file(int metrics, int64_t from, int64_t size,
                                  const std::stop_token& stop,
                                  const std::function<bool(const std::string& lines)>& write);

} // namespace nsa::curves
