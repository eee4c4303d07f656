// The index beside a long metrics.jsonl: of each piece of some 256 KiB the least and the greatest
// value of every metric, with where they stand. A curve of a million steps is a few megabytes of
// it, and no peak is lost. The rank writes it, nsad reads it.
//
//   {"kind":"step","metric":"loss","least":[attempt,step,tokens,"time",value],"greatest":[...]}
//   ...
//   {"begin":0,"end":262201,"check":N,"unreadable":0,"kinds":{"step":[records,least,greatest
//   step]}}
//
// The last line of a segment makes it count; what stands behind the last of them is torn. Segments
// follow each other without a gap from the file's beginning. `check` is of the segment's last bytes
// in metrics.jsonl: where they differ, that file is another one. Pure; any thread.
#pragma once

#include "common/base/json.h"
#include "common/curves/flat_record.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nsa::curves {

inline constexpr const char* kIndexName = "curves.jsonl"; // in the folder of metrics.jsonl
inline constexpr int64_t kSegmentBytes = int64_t{256} << 10;
inline constexpr int64_t kLongestSegment = int64_t{4} << 20; // longer ones are not read
inline constexpr int64_t kCheckedBytes = 4096; // at a segment's end, or all of a shorter one

struct CurvePoint {
  int64_t attempt = 0;
  double step = 0, tokens = 0;
  std::string time;
  double value = 0;
};
struct Extremes {
  CurvePoint least, greatest;
};

uint64_t check_of(std::string_view last_bytes);

// ---- written -----------------------------------------------------------------------------------

// One segment while it grows. Its records have growing steps, so that all of it belongs to one
// attempt.
class SegmentBuilder {
public:
  explicit SegmentBuilder(int64_t begin = 0) : begin_(begin), end_(begin) {}

  // False: its step is not behind the one before; it begins the next segment, and is not taken.
  // `bytes`: of its line with the end.
  bool add(const FlatRecord& record, int64_t bytes);
  bool add(const nlohmann::json& record, int64_t bytes) { return add(flat_record(record), bytes); }
  void add_unreadable(int64_t bytes);

  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  bool is_empty() const { return begin_ == end_; }
  bool is_full() const { return end_ - begin_ >= kSegmentBytes; }
  // Its lines. `check`: of the last bytes of the segment.
  std::string lines(uint64_t check) const;

private:
  struct Kind {
    int64_t records = 0;
    double least = std::numeric_limits<double>::infinity();
    double greatest = -std::numeric_limits<double>::infinity();
    std::map<std::string, Extremes, std::less<>> metrics;
  };
  static void take(Kind& kind, const FlatRecord& record, const CurvePoint& place);

  int64_t begin_, end_, unreadable_ = 0;
  std::map<std::string, Kind, std::less<>> kinds_;
};

// ---- read --------------------------------------------------------------------------------------

struct Segment {
  int64_t begin = 0, end = 0;
  uint64_t check = 0;
  int64_t records = 0, unreadable = 0;                    // records: of the kind that was asked for
  double least = std::numeric_limits<double>::infinity(); // steps of these records
  double greatest = -std::numeric_limits<double>::infinity();
  std::vector<std::optional<Extremes>> metrics; // in the order of the names
  size_t index_end = 0;                         // bytes of the index up to here
  int64_t checked() const { return end - begin < kCheckedBytes ? end - begin : kCheckedBytes; }
};

// The segments from the beginning on that are whole.
std::vector<Segment> read_index(std::string_view index, std::string_view kind,
                                const std::vector<std::string>& metrics);

} // namespace nsa::curves
