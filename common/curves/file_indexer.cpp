#include "common/curves/file_indexer.h"

#include <algorithm>
#include <cerrno>
#include <unistd.h>

namespace nsa::curves {

namespace {

constexpr size_t kReadBytes = size_t{1} << 20;
constexpr size_t kLongestRecord = size_t{64} << 10; // the same limit as in nsad
constexpr auto kKept = static_cast<size_t>(kCheckedBytes);

// Holds the segment under construction.
class Indexer {
public:
  Indexer(int64_t from, const std::function<bool(const std::string&)>& write)
      : segment_(from), write_(write) {}

  // Takes a line with its newline. Returns false if `write` refused.
  bool take(std::string_view line) {
    const auto bytes = static_cast<int64_t>(line.size());
    if (!read(line.substr(0, line.size() - 1))) {
      segment_.add_unreadable(bytes);
    } else if (!segment_.add(record_, bytes)) {
      if (!end_segment()) return false;
      (void)segment_.add(record_, bytes);
    }
    tail_.add(line);
    return !segment_.is_full() || end_segment();
  }

  bool end_segment() {
    if (segment_.is_empty()) return true;
    const bool goes_on = write_(tail_.lines_of(segment_));
    segment_ = SegmentBuilder(segment_.end());
    tail_.clear();
    return goes_on;
  }

private:
  // Parses the line into record_; returns false if it is not a record.
  bool read(std::string_view text) {
    if (text.size() <= kLongestRecord && record_.read(text)) return true;
    const auto record = parse_json(text, "a record", {.bytes = kLongestRecord});
    if (!record) return false;
    record_ = flat_record(*record);
    return true;
  }

  FlatRecord record_;
  SegmentBuilder segment_;
  CheckedTail tail_;
  const std::function<bool(const std::string&)>& write_;
};

} // namespace

void CheckedTail::add(std::string_view line) {
  bytes_ += line;
  if (bytes_.size() > 4 * kKept) bytes_.erase(0, bytes_.size() - kKept);
}

std::string CheckedTail::lines_of(const SegmentBuilder& segment) const {
  const auto checked =
      static_cast<size_t>(std::min(segment.end() - segment.begin(), kCheckedBytes));
  return segment.lines(
      check_of(std::string_view(bytes_).substr(bytes_.size() - std::min(checked, bytes_.size()))));
}

std::string read_piece(int fd, int64_t from, size_t size) {
  std::string bytes(size, '\0');
  size_t filled = 0;
  while (filled < size) {
    const ssize_t got =
        ::pread(fd, bytes.data() + filled, size - filled, from + static_cast<int64_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

void keep_fitting(std::vector<Segment>& segments, int metrics, int64_t size) {
  while (!segments.empty()) {
    const Segment& last = segments.back();
    const auto checked = static_cast<size_t>(last.checked());
    if (last.end <= size &&
        check_of(read_piece(metrics, last.end - last.checked(), checked)) == last.check)
      return;
    segments.pop_back();
  }
}

std::optional<int64_t> index_file(int metrics, int64_t from, int64_t size,
                                  const std::stop_token& stop,
                                  const std::function<bool(const std::string& lines)>& write) {
  Indexer indexer(from, write);
  std::string rest;
  for (int64_t at = from; at < size;) {
    if (stop.stop_requested()) return std::nullopt;
    const std::string bytes =
        read_piece(metrics, at, std::min(kReadBytes, static_cast<size_t>(size - at)));
    if (bytes.empty()) return std::nullopt;
    at += static_cast<int64_t>(bytes.size());
    rest += bytes;
    size_t used = 0;
    for (size_t end; (end = rest.find('\n', used)) != std::string::npos; used = end + 1)
      if (!indexer.take(std::string_view(rest).substr(used, end + 1 - used))) return std::nullopt;
    rest.erase(0, used);
    if (rest.size() > static_cast<size_t>(kLongestSegment)) return std::nullopt;
  }
  if (!indexer.end_segment()) return std::nullopt;
  return std::max(from, size - static_cast<int64_t>(rest.size()));
}

} // namespace nsa::curves
