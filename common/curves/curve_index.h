// The index beside a long metrics.jsonl. For each segment of about 256 KiB it has the least and the
// greatest value of every metric, with their positions. So a curve of a million steps needs a few
// megabytes, and no peak is lost. The rank writes the index, nsad reads it.
//
//   {"kind":"step","metric":"loss","least":[attempt,step,tokens,"time",value],"greatest":[...]}
//   ...
//   {"begin":0,"end":262201,"check":N,"unreadable":0,
//    "kinds":{"step":[records,least step,greatest step]}}   (one line)
//
// A segment counts once its last line is complete; data after the last such line is incomplete.
// Segments follow each other without a gap from the file's beginning. `check` covers the segment's
// last bytes in metrics.jsonl; if it differs, the index belongs to another file. No I/O; callable
// from any thread.
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

inline constexpr const char* kIndexName = "curves.jsonl"; // a file next to metrics.jsonl
inline constexpr int64_t kSegmentBytes = int64_t{256} << 10;
inline constexpr int64_t kLongestSegment = int64_t{4} << 20; // longer segments are not read
inline constexpr int64_t kCheckedBytes = 4096; // length of the checked end of a segment

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

// ---- writing -----------------------------------------------------------------------------------

// A segment under construction. Steps of its records increase, so all of them belong to one
// attempt.
class SegmentBuilder {
public:
  explicit SegmentBuilder(int64_t begin = 0) : begin_(begin), end_(begin) {}

  // Returns false, and does not add the record, if its step is not above the previous one. The
  // record then begins the next segment. `bytes` is the length of its line with the newline.
  bool add(const FlatRecord& record, int64_t bytes);
  bool add(const nlohmann::json& record, int64_t bytes) { return add(flat_record(record), bytes); }
  void add_unreadable(int64_t bytes);

  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }
  bool is_empty() const { return begin_ == end_; }
  bool is_full() const { return end_ - begin_ >= kSegmentBytes; }
  // Returns the segment's lines. `check` is that of the segment's last bytes.
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

// ---- reading -----------------------------------------------------------------------------------

struct Segment {
  int64_t begin = 0, end = 0;
  uint64_t check = 0;
  int64_t records = 0, unreadable = 0; // `records` counts those of the requested kind
  double least = std::numeric_limits<double>::infinity(); // steps of these records
  double greatest = -std::numeric_limits<double>::infinity();
  std::vector<std::optional<Extremes>> metrics; // in the order of the requested names
  size_t index_end = 0;                         // end of the segment's lines in the index
  int64_t checked() const { return end - begin < kCheckedBytes ? end - begin : kCheckedBytes; }
};

// Returns the complete segments from the beginning on.
std::vector<Segment> read_index(std::string_view index, std::string_view kind,
                                const std::vector<std::string>& metrics);

} // namespace nsa::curves
