// A coarse curve of a long metrics.jsonl that has no index yet: some lines at each of a thousand
// evenly spaced places. It shows the run's course at once, while nsad makes the index
// (curve_indexes.h). Peaks between the places are lost.
//
// A zoom reads the places first, and then new places between those around its steps. A short part
// is read whole. Use it on one thread at a time.
#pragma once

#include "daemon/api/metric_rows.h"

namespace nsa::api {

class CoarsePoints {
public:
  CoarsePoints(off_t size, const MetricQuery& query);

  // Reads some of the places. Returns true when all are read.
  Result<bool> read_on(int fd, RowReader& reader, const std::string& path);
  std::vector<MetricRow> take_rows() { return std::move(rows_); }
  int64_t records() const { return records_; } // number of records read
  int64_t unreadable() const { return unreadable_; }

private:
  struct Mark { // offset of a place, and its first step
    off_t at = 0;
    double step = 0;
  };
  Status read_place(int fd, RowReader& reader, const std::string& path);
  Status read_whole(int fd, RowReader& reader, const std::string& path);
  void take(std::string_view text, RowReader& reader, off_t place);
  bool narrow(); // narrows the range to the zoom's steps; false if nothing more must be read

  const double first_, last_; // steps
  bool narrowed_;
  off_t begin_ = 0, end_;
  size_t place_ = 0;
  std::vector<Mark> marks_;
  std::vector<MetricRow> rows_;
  int64_t records_ = 0, unreadable_ = 0;
};

} // namespace nsa::api
