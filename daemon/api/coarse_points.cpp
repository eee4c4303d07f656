#include "daemon/api/coarse_points.h"

#include <algorithm>
#include <cmath>

namespace nsa::api {

namespace {

constexpr size_t kPlaces = 1024;
constexpr size_t kPlacesAtOnce = 128;
constexpr size_t kLinesOfPlace = 4;
constexpr size_t kPlaceBytes = size_t{16} << 10;
// Contains a whole line, if any line starts here.
constexpr size_t kLongPlaceBytes = 2 * kMaxMetricLine;
constexpr off_t kReadWhole = off_t{4} << 20;
constexpr size_t kMostRows = size_t{1} << 14;

// Drops the line that began before these bytes, because it is not whole.
std::string_view behind_first_line(std::string_view bytes) {
  const size_t end = bytes.find('\n');
  return end == std::string_view::npos ? std::string_view() : bytes.substr(end + 1);
}

} // namespace

CoarsePoints::CoarsePoints(off_t size, const MetricQuery& query)
    : first_(static_cast<double>(query.first_step)), last_(static_cast<double>(query.last_step)),
      narrowed_(query.first_step <= 0 && query.last_step == INT64_MAX), end_(size) {}

Result<bool> CoarsePoints::read_on(int fd, RowReader& reader, const std::string& path) {
  for (size_t i = 0; i < kPlacesAtOnce && place_ < kPlaces; ++i, ++place_)
    NSA_TRY(read_place(fd, reader, path));
  if (place_ < kPlaces) return false;
  if (narrowed_ || !narrow()) return true;
  if (end_ - begin_ > kReadWhole) return false;
  NSA_TRY(read_whole(fd, reader, path));
  return true;
}

Status CoarsePoints::read_place(int fd, RowReader& reader, const std::string& path) {
  const auto piece = static_cast<off_t>(kPlaceBytes);
  // The last place is the end of the file, so that the curve reaches the newest record.
  const off_t at = place_ + 1 == kPlaces ? std::max(begin_, end_ - piece)
                                         : begin_ + (end_ - begin_) / static_cast<off_t>(kPlaces) *
                                                        static_cast<off_t>(place_);
  for (const size_t size : {kPlaceBytes, kLongPlaceBytes}) {
    NSA_TRY_ASSIGN(const std::string bytes, read_at(fd, at, size, path));
    const std::string_view lines = at == 0 ? std::string_view(bytes) : behind_first_line(bytes);
    if (lines.find('\n') == std::string_view::npos) continue;
    const size_t most = place_ + 1 == kPlaces ? SIZE_MAX : kLinesOfPlace;
    size_t taken = 0;
    (void)each_line(lines, [&](std::string_view text) {
      if (taken++ < most) take(text, reader, at);
    });
    break;
  }
  return {};
}

Status CoarsePoints::read_whole(int fd, RowReader& reader, const std::string& path) {
  NSA_TRY_ASSIGN(const std::string bytes,
                 read_at(fd, begin_, static_cast<size_t>(end_ - begin_), path));
  (void)each_line(begin_ == 0 ? std::string_view(bytes) : behind_first_line(bytes),
                  [&](std::string_view text) { take(text, reader, begin_); });
  return {};
}

void CoarsePoints::take(std::string_view text, RowReader& reader, off_t place) {
  MetricRow row;
  bool is_record = false;
  if (!reader.read(text, row, is_record)) ++unreadable_;
  if (!is_record || std::isnan(row.step)) return;
  ++records_;
  if (!narrowed_ && (marks_.empty() || marks_.back().at != place))
    marks_.push_back({place, row.step});
  // Applies also to rows outside the query's steps.
  while (!rows_.empty() && rows_.back().step >= row.step)
    rows_.pop_back();
  if (row.step >= first_ && row.step <= last_) keep_row(rows_, std::move(row), kMostRows);
}

bool CoarsePoints::narrow() {
  narrowed_ = true;
  off_t from = end_, to = 0;
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    if (marks_[i].step > last_ || marks_[i + 1].step < first_) continue;
    from = std::min(from, marks_[i].at);
    to = std::max(to, marks_[i + 1].at + static_cast<off_t>(kPlaceBytes));
  }
  if (from >= to) return false;
  begin_ = from;
  end_ = std::min(to, end_);
  place_ = 0;
  records_ = unreadable_ = 0;
  rows_.clear();
  return true;
}

} // namespace nsa::api
